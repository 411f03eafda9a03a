"""data/fetch, on local files and a small local server: no network is needed."""
from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

FETCH = Path(__file__).resolve().parents[2] / "data" / "fetch"
AZURE = ("TIMESTAMP,ContextTokens,GeneratedTokens\n"
         "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
CONVERTED = "t_s,input_tokens,output_tokens\n0.000000,374,44\n4.314579,396,109\n"


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FETCH), "--to", str(tmp_path / "data"), *arguments],
                          capture_output=True, text=True, timeout=60, check=False)


def source(tmp_path: Path, text: str | bytes, name: str = "original") -> tuple[str, str]:
    """A file's URL and SHA-256."""
    content = text.encode() if isinstance(text, str) else text
    path = tmp_path / name
    path.write_bytes(content)
    return path.as_uri(), hashlib.sha256(content).hexdigest()


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def fetch_text(tmp_path: Path, name: str, text: str | bytes, output: str) -> str:
    url, digest = source(tmp_path, text)
    done = run(tmp_path, name, "--url", f"{name}={url}", "--sha256", f"{name}={digest}")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "data" / output
    return gzip.open(path, "rt").read() if output.endswith(".gz") else path.read_text()


def test_list_names_every_licence(tmp_path: Path) -> None:
    done = run(tmp_path, "list")
    assert done.returncode == 0
    assert "azure-llm-conv" in done.stdout and "CC-BY 4.0" in done.stdout
    assert "by hand" in done.stdout


def test_good_sum_is_converted(tmp_path: Path) -> None:
    assert fetch_text(tmp_path, "azure-llm-conv", AZURE, "azure_llm_2023/conv.csv.gz") == CONVERTED
    assert files_in(tmp_path / "data") == ["azure_llm_2023/conv.csv.gz"]
    again = run(tmp_path, "azure-llm-conv")
    assert again.returncode == 0 and "already here" in again.stdout


def test_same_data_same_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    digests = []
    for folder in (first, second):
        folder.mkdir()
        fetch_text(folder, "azure-llm-conv", AZURE, "azure_llm_2023/conv.csv.gz")
        content = (folder / "data" / "azure_llm_2023" / "conv.csv.gz").read_bytes()
        digests.append(hashlib.sha256(content).hexdigest())
    assert digests[0] == digests[1]


def test_wrong_sum_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    url, _ = source(tmp_path, AZURE)
    done = run(tmp_path, "azure-llm-conv", "--url", f"azure-llm-conv={url}", "--sha256",
               "azure-llm-conv=" + "0" * 64)
    assert done.returncode != 0
    assert "SHA-256 is" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert files_in(tmp_path / "data") == []


def test_known_ends_of_a_sum(tmp_path: Path) -> None:
    url, digest = source(tmp_path, AZURE)
    for sum_, code in ((digest[:8] + "..." + digest[-3:], 0), ("00000000..." + digest[-3:], 1)):
        folder = tmp_path / str(code)
        done = run(folder, "azure-llm-conv", "--url", f"azure-llm-conv={url}", "--sha256",
                   f"azure-llm-conv={sum_}")
        assert done.returncode == code, done.stderr


def test_unpublished_sum_is_recorded_and_then_enforced(tmp_path: Path) -> None:
    url, digest = source(tmp_path, AZURE)
    done = run(tmp_path, "azure-llm-conv", "--url", f"azure-llm-conv={url}")
    assert done.returncode == 0 and "unverified" in done.stdout
    assert digest in (tmp_path / "data" / "checksums.txt").read_text()
    (tmp_path / "data" / "azure_llm_2023" / "conv.csv.gz").unlink()
    source(tmp_path, AZURE.replace("374", "375"))  # the same address, other content
    done = run(tmp_path, "azure-llm-conv", "--url", f"azure-llm-conv={url}")
    assert done.returncode != 0 and digest in done.stderr


@pytest.mark.parametrize("text", ["TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,374\n",
                                  "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
                                  b"\x1f\x8b\x08\x00 cut"])
def test_damaged_content_leaves_no_output(tmp_path: Path, text: str | bytes) -> None:
    url, digest = source(tmp_path, text)
    done = run(tmp_path, "azure-llm-conv", "--url", f"azure-llm-conv={url}", "--sha256",
               f"azure-llm-conv={digest}")
    assert done.returncode != 0
    assert "cannot be converted" in done.stderr and "Traceback" not in done.stderr
    assert not any(f.startswith("azure") for f in files_in(tmp_path / "data"))


def test_messages_are_one_line(tmp_path: Path) -> None:
    for arguments, part in ((("nonsense",), "unknown name"), (("gentd26",), "research use"),
                            (("alpaca",), "--tokenizer"),
                            (("azure-llm-conv", "--url",
                              f"azure-llm-conv=file://{tmp_path}/absent"), "absent")):
        done = run(tmp_path, *arguments)
        assert done.returncode != 0 and part in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


class Flaky(http.server.BaseHTTPRequestHandler):
    """Promises the whole content; the first time it sends only half of it."""

    content = AZURE.encode()
    requests: list[str | None] = []

    def do_GET(self) -> None:  # noqa: N802 (the name is the library's)
        asked = self.headers.get("Range")
        Flaky.requests.append(asked)
        start = int(asked[len("bytes="):-1]) if asked else 0
        body = self.content[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if len(Flaky.requests) > 1 else body[:len(body) // 2])

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_truncated_download_is_refused_then_resumed(tmp_path: Path) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Flaky)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/conv.csv"
        arguments = ("azure-llm-conv", "--url", f"azure-llm-conv={url}", "--sha256",
                     "azure-llm-conv=" + hashlib.sha256(Flaky.content).hexdigest())
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        command = [sys.executable, str(FETCH), "--to", str(tmp_path / "data"), *arguments]
        first = subprocess.run(command, capture_output=True, text=True, env=environment,
                               timeout=60, check=False)
        assert first.returncode != 0 and "run again to continue" in first.stderr
        assert not (tmp_path / "data" / "azure_llm_2023").exists()
        second = subprocess.run(command, capture_output=True, text=True, env=environment,
                                timeout=60, check=False)
        assert second.returncode == 0, second.stderr
    finally:
        server.shutdown()
    assert Flaky.requests == [None, f"bytes={len(Flaky.content) // 2}-"]
    assert gzip.open(tmp_path / "data/azure_llm_2023/conv.csv.gz", "rt").read() == CONVERTED


def test_conversions(tmp_path: Path) -> None:
    lines = [{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1, 2]},
             {"timestamp": 3000, "input_length": 8, "output_length": 4, "hash_ids": [1, 2, 3]}]
    assert fetch_text(tmp_path, "mooncake-synthetic", "\n".join(map(json.dumps, lines)) + "\n",
                      "mooncake/synthetic.csv.gz").splitlines()[1:] == [
        "0,9,5,2,0,1 2", "3000,8,4,3,2,1 2 3"]
    assert fetch_text(tmp_path, "bwb", "num_prefill_tokens,num_decode_tokens,pd_ratio\n7,8.0,1\n",
                      "length_sets/bwb_llama2tok.csv.gz") == "input_tokens,output_tokens\n7,8\n"
    assert fetch_text(tmp_path, "maf1", "HashOwner,HashApp,HashFunction,Trigger,1,2\n"
                      "a,b,c,http,1,2\na,d,e,timer,0,0\n",
                      "azure_functions_2019/sample1350_one_day_minute_of_day.csv.gz"
                      ).splitlines() == ["fn,owner,app,trigger,total,1,2", "0,0,0,http,3,1,2",
                                         "1,0,1,timer,0,0,0"]
    rows = fetch_text(tmp_path, "maf2-full", "app,func,end_timestamp,duration\n"
                      "x,f,59.9,1\nx,f,61,1\ny,g,0,1\n",
                      "azure_functions_2021/functions_per_minute.csv.gz").splitlines()
    assert rows[1].startswith("0,0,2,1,1,0,") and rows[2].startswith("1,1,1,1,0,")
    assert len(rows[0].split(",")) == 3 + 20160


def test_advice_names_only_what_can_be_fetched(tmp_path: Path) -> None:
    """The engine advises `data/fetch NAME` for its last column; a name by hand stands empty."""
    catalogue = (FETCH.parents[1] / "engine" / "workload" / "data_files.cc").read_text()
    rows = re.findall(r'\{"([\w-]+)", k\w+,[^{}]*"([\w-]*)"\}', catalogue)
    assert len(rows) > 25
    listing = dict(line.split(None, 1) for line in run(tmp_path, "list").stdout.splitlines())
    for name, fetched in rows:
        assert fetched in listing or not fetched, name
        assert "by hand" not in listing.get(fetched, ""), name
        if "by hand" in listing.get(name, ""):
            assert fetched == "", name
