#!/usr/bin/env bash
# The same specs twice, step by step, and from the sanitized build, in which nothing that decides is
# optimised: decision logs and content digests must be equal, byte for byte.
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
"$build/servelab" run "${specs[@]}" --out "$out/steps" --step-by-step --quiet
"$unoptimised/servelab" run "${specs[@]}" --out "$out/O0" --quiet
"$build/servelab" run "${real_specs[@]}" --out "$out/real" --quiet
"$build/servelab" replay "${real_specs[@]}" --out "$out/real"

"$python" tests/same_results.py --with-logs "$out/O3" "$out/again" "$out/steps" "$out/O0"
