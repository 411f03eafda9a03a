#!/usr/bin/env bash
# The same specs twice, and from the sanitized build, in which nothing that decides is optimised:
# decision logs and content digests must be equal, byte for byte.
# Usage: tests/determinism.sh [BUILD [UNOPTIMISED]] (default: build build-sanitize, of `make sanitize`)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
unoptimised=${2:-build-sanitize}
python=${PYTHON:-.venv/bin/python}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

for program in "$build/servelab" "$unoptimised/servelab"; do
  [[ -x $program ]] || { echo "determinism: no $program; run: make build sanitize" >&2; exit 1; }
done

# Runs in wall-clock time are never the same twice; what must be is their replay.
mapfile -t specs < <(grep -L '^backend: cpu' experiments/smoke/*.yaml)
mapfile -t real_specs < <(grep -l '^backend: cpu' experiments/smoke/*.yaml)
"$build/servelab" run "${specs[@]}" --out "$out/O3" --quiet
"$build/servelab" run "${specs[@]}" --out "$out/again" --quiet
"$unoptimised/servelab" run "${specs[@]}" --out "$out/O0" --quiet
"$build/servelab" run "${real_specs[@]}" --out "$out/real" --quiet
"$build/servelab" replay "${real_specs[@]}" --out "$out/real"

"$python" - "$out" <<'PYTHON'
import pathlib, sys
import h5py

out = pathlib.Path(sys.argv[1])
runs = {}
for name in ("O3", "again", "O0"):
    for path in sorted((out / name).rglob("points/*.h5")):
        with h5py.File(path) as f:
            log = bytes(f["decisions"][()]) if "decisions" in f else b""
            runs.setdefault(str(path.relative_to(out / name)), {})[name] = (
                f.attrs["content_digest"], f.attrs["decision_hash"], log)
bad = 0
if not runs:
    sys.exit("determinism: no points were written")
for point, seen in runs.items():
    if len(seen) != 3 or len(set(seen.values())) != 1:
        bad += 1
        print(f"determinism: {point} differs between {', '.join(seen)}")
logs = sum(1 for seen in runs.values() if seen.get("O3", ("", "", b""))[2])
print(f"determinism: {len(runs)} points, {logs} with decision logs, {bad} differ")
sys.exit(1 if bad or not logs else 0)
PYTHON
