"""tests/run_shards.sh, which counts and names what programs of GoogleTest print."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = "[==========] Running {} tests from 1 test suite."
PASSES = "[ RUN      ] Suite.Passes\n[       OK ] Suite.Passes (7 ms)"
FAILS = ("[ RUN      ] Suite.Fails\na_test.cc:3: Failure\n  2 is not 3\n"
         "[  FAILED  ] Suite.Fails, where GetParam() = 3 (0 ms)")
SKIPS = ("[ RUN      ] Suite.Skips\na_test.cc:4: Skipped\nno GPU:\nno driver\n\n"
         "[  SKIPPED ] Suite.Skips (0 ms)")
CHATTY = "[ RUN      ] Suite.Chatty\n[ RUN away\nno end of line[       OK ] Suite.Chatty (0 ms)"


def program(folder: Path, name: str, tests: list[str], then: str = "exit 0",
            count: int | None = None) -> Path:
    """A program whose first shard prints this, and whose others have no tests."""
    text = "\n".join([HEAD.format(len(tests) if count is None else count), *tests])
    path = folder / name
    path.write_text(f"#!/bin/sh\n[ $GTEST_SHARD_INDEX = 0 ] || {{ echo '{HEAD.format(0)}'; exit; }}"
                    f"\ncat <<'END'\n{text}\nEND\n{then}\n")
    path.chmod(0o755)
    return path


def run(*programs: Path) -> tuple[int, list[str]]:
    done = subprocess.run([ROOT / "tests/run_shards.sh", "2", *programs], capture_output=True,
                          text=True, timeout=60, env={**os.environ, "SLOWEST": "1"})
    return done.returncode, done.stdout.splitlines()


def test_passed_and_skipped_are_counted_over_all_programs_with_the_reason(tmp_path):
    code, lines = run(program(tmp_path, "one", [PASSES, SKIPS]),
                      program(tmp_path, "two", [CHATTY, PASSES]))
    assert code == 0
    assert lines == ["skipped 1 of one: no GPU: no driver", "      7 ms  two: Suite.Passes",
                     "3 passed, 0 failed, 1 skipped"]


def test_many_tests_are_counted_too(tmp_path):
    passes = [PASSES.replace("Passes", f"PassesAsManyOthersDo{i}") for i in range(4000)]
    code, lines = run(program(tmp_path, "one", passes))
    assert (code, lines[1:]) == (0, ["4000 passed, 0 failed, 0 skipped"])


def test_a_failure_is_shown_with_what_it_printed(tmp_path):
    code, lines = run(program(tmp_path, "one", [PASSES, FAILS, PASSES], "exit 1"))
    assert code == 1
    assert lines == ["==== one", "a_test.cc:3: Failure", "  2 is not 3",
                     "[  FAILED  ] Suite.Fails, where GetParam() = 3 (0 ms)",
                     "      7 ms  one: Suite.Passes", "2 passed, 1 failed, 0 skipped"]


def test_the_test_that_ends_its_process_is_named_and_the_rest_has_failed(tmp_path):
    code, lines = run(program(tmp_path, "one", [PASSES, "[ RUN      ] Suite.Crashes", "at 0x0"],
                              "kill -SEGV $$", count=5))
    assert code == 1
    assert "Suite.Crashes ended its process (exit 139); 3 behind it did not run" in lines
    assert "at 0x0" in lines and lines[-1] == "1 passed, 4 failed, 0 skipped"


def test_an_end_without_a_test_is_a_failure(tmp_path):
    code, lines = run(program(tmp_path, "one", [PASSES], "echo 8 bytes leaked; exit 1"))
    assert code == 1 and "shard 0: exit 1 after its tests" in lines
    assert "8 bytes leaked" in lines and lines[-1] == "1 passed, 1 failed, 0 skipped"
    code, lines = run(program(tmp_path, "one", [PASSES], count=2))
    assert code == 1 and "shard 0: exit 0 before its tests" in lines
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"


def test_what_does_not_start_or_has_no_tests_fails(tmp_path):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho no such library; exit 127\n")
    silent.chmod(0o755)
    for path in (silent, tmp_path / "absent"):
        code, lines = run(program(tmp_path, "one", [PASSES]), path)
        assert code == 1 and lines[-1] == "1 passed, 8 failed, 0 skipped", lines
    assert run(program(tmp_path, "one", [])) == (1, ["0 passed, 0 failed, 0 skipped"])
    assert run()[0] == 1
