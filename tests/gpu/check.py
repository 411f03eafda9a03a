"""The first thing to run on a machine with a GPU: `make gpu-check OUT=dir`.

Finds the CUDA libraries that the programs need first. Then runs, in under eight minutes: the tests
of kernels and engine, a small part again under compute-sanitizer, a quick calibration, the kernel
benchmarks (with PyTorch's times beside them where it is installed), the GPU figures' quick forms
with the profile that came out, and in what is left the search for races. Leaves in dir:

    check.json          what ran, for how long, how it ended, all that was printed; the card; the
                        libraries; every benchmark row, those of a benchmark that was cut off too;
                        what is asked, beside what was measured
    profile.yaml        the hardware profile fitted from this card
    calibration.csv     the measurements behind it
    <paper>_figNN.h5    one for each figure: its collected.h5 and points (python -m analysis.pack)

Until check.json is there, log.txt has what was printed so far.
Exit code 0: all that ran passed; 1: something failed; 3: there is no GPU here.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# One type of each kernel; cuBLASLt is not ours to sanitize.
SANITIZED = "*bf16*:Sampling*:*Blocks*:Gather*-*Dense*"
FIGURES_S = 110
FIGURES = ["dlora/fig05_cuda", "caraserve/fig04_cuda", "placement/fig05_cuda", "dlora/fig10_cuda",
           "caraserve/fig16_cuda"]
PROGRAMS = ("servelab", "servelab_gpu_tests", "servelab_gpu_engine_tests", "servelab_cuda_bench",
            "servelab_cuda_engine_bench")
QUERY = ("name,uuid,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,power.limit,"
         "temperature.gpu")


def read_rows(path: Path) -> list[dict]:
    """A benchmark's rows, one JSON object a line; a line that was cut off is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def library_folders() -> list[Path]:
    """Where toolkits and pip's packages put CUDA's libraries."""
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH")
                if os.environ.get(name)]
    if compiler := shutil.which("nvcc"):
        toolkits.append(Path(compiler).resolve().parents[1])
    toolkits += [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    folders = []
    for toolkit in toolkits:
        folders += [toolkit / "lib64", toolkit / "lib", *sorted(toolkit.glob("targets/*/lib"))]
    for path in map(Path, sys.path):
        folders += sorted(path.glob("nvidia/*/lib"))
    return [folder for folder in folders if folder.is_dir()]


class Check:
    def __init__(self, out: Path, binaries: Path, limit_s: float, model: str) -> None:
        self.out, self.binaries, self.model = out, binaries, model
        self.started = time.monotonic()
        self.limit_s = limit_s
        self.reserved_s = min(FIGURES_S, limit_s / 4)  # for the figures, until they begin
        self.log = open(out / "log.txt", "w", encoding="utf-8")
        self.report: dict = {"steps": [], "benchmarks": []}
        self.environment = dict(os.environ)
        libraries = binaries / "lib"
        if libraries.is_dir():  # a bundle brings what the machine may lack
            paths = [str(libraries), self.environment.get("LD_LIBRARY_PATH", "")]
            self.environment["LD_LIBRARY_PATH"] = ":".join(p for p in paths if p)

    def needed(self, program: Path) -> dict[str, str]:
        """The libraries that the loader wants for it, by name; where it finds none, ''."""
        answer = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=30,
                                check=False, env=self.environment).stdout
        return {name: where if where != "not" else "" for name, where in
                re.findall(r"^\s*(\S+) => (\S+)", answer, re.MULTILINE)}

    def find_libraries(self, programs: list[Path]) -> str:
        """Adds to the loader's path what the programs lack. Returns what cannot be found."""
        found: dict[str, str] = {}
        for program in programs:
            for name, where in self.needed(program).items():
                if not where:
                    folder = next((f for f in library_folders() if (f / name).exists()), None)
                    if folder is None:
                        return name
                    where = str(folder / name)
                    paths = [self.environment.get("LD_LIBRARY_PATH", ""), str(folder)]
                    self.environment["LD_LIBRARY_PATH"] = ":".join(p for p in paths if p)
                if re.match(r"lib(cu|nv|nccl)", name):
                    found[name] = os.path.realpath(where)
        self.report["libraries"] = found
        for name, where in sorted(found.items()):
            self.say(f"{name:28} {where}")
        return ""

    def left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self.started)

    def binary(self, name: str) -> Path | None:
        for folder in ("", "bin", "tests/gpu", "tests/cuda_engine", "kernels/bench"):
            path = self.binaries / folder / name
            if path.is_file():
                return path
        return None

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.log.write(text + "\n")

    def skip(self, name: str, reason: str) -> None:
        self.report["steps"].append({"step": name, "status": "skipped", "reason": reason})
        self.say(f"{name:28} skipped: {reason}")

    def run(self, name: str, command: list, most_s: float, allowed: tuple = (0,),
            may_skip: bool = False) -> bool:
        """Runs a step for at most `most_s` seconds or what is left; True when it passed."""
        limit = min(most_s, self.left_s() - self.reserved_s)
        if limit < 5:
            self.skip(name, "no time is left")
            return False
        begin = time.monotonic()
        self.log.write(f"\n== {name}: {' '.join(map(str, command))}\n")
        self.log.flush()
        logged = os.fstat(self.log.fileno()).st_size
        try:
            code = subprocess.run([str(part) for part in command], cwd=ROOT, timeout=limit,
                                  stdout=self.log, stderr=subprocess.STDOUT, check=False,
                                  env=self.environment, stdin=subprocess.DEVNULL).returncode
            status = "passed" if code in allowed else f"FAILED with code {code}"
        except subprocess.TimeoutExpired:
            code, status = -1, f"FAILED: cut off after {limit:.0f} s"
        except OSError as problem:
            code, status = -1, f"FAILED: {problem}"
        if status == "passed":
            status = self.what_it_says(logged, may_skip) or status
        took = time.monotonic() - begin
        self.report["steps"].append({"step": name, "status": status, "code": code,
                                     "seconds": round(took, 1)})
        self.say(f"{name:28} {status} ({took:.0f} s)")
        return status == "passed"

    def what_it_says(self, logged: int, may_skip: bool) -> str:
        """Programs that find no device skip and end with code 0, but here there is one."""
        printed = (self.out / "log.txt").read_bytes()[logged:].decode(errors="replace")
        if re.search(r"^skipped", printed, re.MULTILINE):
            return "skipped" if may_skip else "FAILED: it was skipped (see the log)"
        count = {state: int(number) for state, number in
                 re.findall(r"^\[  (PASSED |SKIPPED) \] (\d+) test", printed, re.MULTILINE)}
        passed, skipped = count.get("PASSED ", 1), count.get("SKIPPED", 0)
        return f"FAILED: {skipped} tests were skipped, {passed} ran" if skipped > passed else ""

    def finish(self) -> int:
        self.report["seconds"] = round(time.monotonic() - self.started, 1)
        failed = [s for s in self.report["steps"] if s["status"].startswith("FAILED")]
        self.report["passed"] = not failed
        self.say(f"gpu-check: {len(self.report['steps'])} steps, {len(failed)} failed, "
                 f"{self.report['seconds']:.0f} s; {self.out}/check.json")
        self.log.close()
        log = self.out / "log.txt"
        self.report["log"] = log.read_text(encoding="utf-8", errors="replace").splitlines()
        (self.out / "check.json").write_text(json.dumps(self.report, indent=1) + "\n",
                                             encoding="utf-8")
        log.unlink()
        return 1 if failed else 0


def card() -> dict | None:
    """What nvidia-smi says of the first GPU; None without one."""
    try:
        answer = subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"],
                                capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.strip().splitlines()
    return dict(zip(QUERY.split(","), lines[0].split(", "))) if lines else None


def tests(check: Check) -> None:
    for name in ("servelab_gpu_tests", "servelab_gpu_engine_tests"):
        binary = check.binary(name)
        if binary is None:
            check.skip(name, f"not built in {check.binaries}")
            continue
        check.run(name, [binary, "--gtest_brief=1"], 75)


def sanitize(check: Check, tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    binary = check.binary("servelab_gpu_tests")
    if sanitizer is None or binary is None:
        check.skip(tool, "compute-sanitizer was not found" if binary else "no tests were built")
        return
    check.environment["SERVELAB_SMALL_TESTS"] = "1"
    check.run(tool, [sanitizer, "--tool", tool, "--error-exitcode", "9", binary,
                     "--gtest_brief=1", f"--gtest_filter={SANITIZED}"], 45)
    del check.environment["SERVELAB_SMALL_TESTS"]


def benchmarks(check: Check) -> None:
    binary = check.binary("servelab_cuda_bench")
    if binary is None:
        check.skip("servelab_cuda_bench", f"not built in {check.binaries}")
        return
    ours, torch, steps = (check.out / f"{name}.json" for name in ("bench", "torch", "steps"))
    check.run("kernel benchmarks", [binary, "--json", ours, "--seconds", "45"], 75)
    check.run("the same in PyTorch", [sys.executable, ROOT / "tests/gpu/torch_lora.py", "--bench",
                                      ours, "--json", torch, "--seconds", "15"], 40,
              may_skip=True)
    engine = check.binary("servelab_cuda_engine_bench")
    if engine is None:
        check.skip("engine steps", f"not built in {check.binaries}")
    else:
        check.run("engine steps", [engine, "--json", steps], 60)
    for path in (ours, torch, steps):
        if path.is_file():
            check.report["benchmarks"] += read_rows(path)
            path.unlink()
    asked = [row for row in check.report["benchmarks"] if row.get("name") == "ratio"]
    for row in asked:
        asked_of_it = f"asked at most {row['at_most']:.2f}"
        missed = "  ABOVE" if row["ratio"] > row["at_most"] else ""
        check.say(f"{row['shape']:69} {row['ratio']:9.3f}, {asked_of_it}{missed}")


def figures(check: Check, profile: Path) -> None:
    servelab = check.binary("servelab")
    results = check.out / "results"
    check.reserved_s = 0
    for index, figure in enumerate(FIGURES):
        # What is left, by those that are left: one that hangs takes no time from the others.
        limit = (check.left_s() - 5) / (len(FIGURES) - index)
        if limit < 10:
            check.skip(figure, "no time is left")
            continue
        command = [servelab, "run", f"experiments/{figure}.yaml", "--quick", "--out", results,
                   "--time-limit", f"{limit:.0f}"]
        if profile.is_file():
            command += ["--profile", profile]
        check.run(figure, command, limit, allowed=(0, 75))
        spec_id = f"{figure}-quick" + ("_profile" if profile.is_file() else "")
        if (results / spec_id / "collected.h5").is_file():
            name = figure.removesuffix("_cuda").replace("/", "_") + ".h5"
            check.run(f"pack {name}", [sys.executable, "-m", "analysis.pack", "pack",
                                       results / spec_id, check.out / name], 30)
    shutil.rmtree(results, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="check and measure servelab on this GPU")
    parser.add_argument("out", type=Path)
    parser.add_argument("--binaries", type=Path, default=ROOT / "build",
                        help="a build folder, or a bundle of `make gpu-bundle`")
    parser.add_argument("--seconds", type=float, default=460, help="to take at most")
    parser.add_argument("--model", default="llama-2-7b")
    arguments = parser.parse_args()
    gpu = card()
    if gpu is None:
        print("gpu-check: no GPU here (nvidia-smi finds none): nothing was run", file=sys.stderr)
        return 3
    arguments.out.mkdir(parents=True, exist_ok=True)
    check = Check(arguments.out.resolve(), arguments.binaries.resolve(), arguments.seconds,
                  arguments.model)
    check.report["card"] = gpu
    check.say(f"{gpu['name']}, driver {gpu['driver_version']}")
    servelab = check.binary("servelab")
    if servelab is None:
        print(f"gpu-check: no servelab in {check.binaries}; run `make build` first",
              file=sys.stderr)
        return 1
    programs = [path for name in PROGRAMS if (path := check.binary(name)) is not None]
    if missing := check.find_libraries(programs):
        print(f"gpu-check: {missing} was not found: install the CUDA Toolkit's run-time libraries, "
              "or name their folder in LD_LIBRARY_PATH", file=sys.stderr)
        return 1
    tests(check)
    sanitize(check, "memcheck")
    profile = check.out / "profile.yaml"
    check.run("calibration", [servelab, "calibrate", "--backend", "cuda", "--model", check.model,
                              "--quick", "--out", profile], 90)
    (check.out / "profile.csv").exists() and (check.out / "profile.csv").rename(
        check.out / "calibration.csv")
    benchmarks(check)
    figures(check, profile)
    sanitize(check, "racecheck")
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
