#!/usr/bin/env bash
# Whether two builds decide and record the same: runs every spec of experiments/ with both, on the
# twin also where the spec names an engine (tests/on_twin.py), and compares the results point by
# point (tests/same_results.py, which takes the rest of the arguments).
# Usage: tests/compare_builds.sh OLD NEW [--except TECHNIQUE]... (two programs; NEW reads the specs)
# Variables: SPECS (ids; default: all), JOBS, SERVELAB_DATA, PYTHON.
set -euo pipefail
cd "$(dirname "$0")/.."
old=$(realpath "${1:?the old program}") new=$(realpath "${2:?the new program}")
shift 2
python=${PYTHON:-.venv/bin/python}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Specs that extend nothing, so that an older program can read them.
mkdir "$out/experiments"
cp -r experiments/base experiments/claims.yaml "$out/experiments/"
for id in ${SPECS:-$(find experiments -mindepth 2 -name '*.yaml' -not -path '*/base/*' |
                     sed 's|^experiments/||; s|\.yaml$||' | sort)}; do
  mkdir -p "$out/experiments/$(dirname "$id")"
  "$new" check --effective "$id" | "$python" tests/on_twin.py >"$out/experiments/$id.yaml"
done
find "$out/experiments" -mindepth 2 -name '*.yaml' -not -path '*/base/*' | sort |
  while read -r spec; do
    for side in old new; do
      # A spec that the twin refuses is in neither's results, and is said here with its reason.
      "${!side}" run "$spec" --out "$out/$side" --quiet -j "${JOBS:-2}" 2>"$out/log" </dev/null ||
        printf 'compare builds: %s: %s\n' "$side" \
          "$(grep -m1 'error:' "$out/log" | sed "s|$out/||g")"
    done
  done
"$python" tests/same_results.py "$out/old" "$out/new" "$@"
