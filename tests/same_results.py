#!/usr/bin/env python3
"""Whether runs came out the same: tests/same_results.py RESULTS RESULTS...

Points are paired by what they are (spec, sweep position, technique with its settings, seed) and not
by their keys, which hold the build; each pair's decision hash and content digest must be equal.
Exit code 1 where they are not, or a point is missing; 2 where there are none.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

import h5py


def points(folder: Path) -> dict[tuple, tuple]:
    found = {}
    for path in sorted(folder.rglob("points/*.h5")):
        with h5py.File(path) as file:
            spec = file["spec"]
            name = (file.attrs["spec_id"], spec["sweep"][()], file.attrs["technique"],
                    int(file.attrs["seed"]), spec["requested"][()])
            log = bytes(file["decisions"][()]) if "decisions" in file else b""
            found[name] = (file.attrs["decision_hash"], file.attrs["content_digest"], log)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument("--with-logs", action="store_true",
                        help="fail where no two equal points kept their decision logs as text")
    parser.add_argument("--except", dest="excepted", action="append", default=[],
                        metavar="TECHNIQUE", help="whose points may differ; they are counted")
    options = parser.parse_args()
    runs = [points(folder) for folder in options.folders]
    names = sorted(set().union(*runs), key=str)
    if not names:
        print("same results: no points in " + ", ".join(map(str, options.folders)))
        return 2
    bad = excepted = logs = 0
    for name in names:
        there = [run.get(name) for run in runs]
        if None not in there and len(set(there)) == 1:
            logs += bool(there[0][2])
            continue
        if name[2] in options.excepted and None not in there:
            excepted += 1
            continue
        bad += 1
        sweep = name[1].decode() if isinstance(name[1], bytes) else name[1]
        what = ("is missing" if None in there else
                "decides otherwise" if len({one[0] for one in there}) > 1 else "reads otherwise")
        print(f"same results: {name[0]} {sweep} {name[2]} seed {name[3]} {what}")
    print(f"same results: {len(names)} points, {logs} with decision logs, {bad} differ"
          + (f", {excepted} of {', '.join(options.excepted)} may" if options.excepted else ""))
    return 1 if bad or (options.with_logs and not logs) else 0


if __name__ == "__main__":
    sys.exit(main())
