#!/usr/bin/env bash
# Types the README's "Add your technique in one file" in a copy of the tree, as it stands there, and
# checks that it works: the technique is listed, runs, and passes the conformance suite.
# Usage: tests/readme_example.sh
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$copy"
cd "$copy"
awk '/^## Add your technique/ { inside = 1; next } /^## / { inside = 0 }
     inside && /^```sh/ { code = 1; next } /^```/ { code = 0 } inside && code' README.md >example.sh
[ -s example.sh ] || { echo "README.md has no example"; exit 1; }
bash -euo pipefail example.sh >example.log 2>&1 || { tail -n 60 example.log; exit 1; }
grep -q 'shortest-prompt' <(build/servelab list) || { echo "not listed"; exit 1; }
grep -q '\[  PASSED  \] [1-9]' example.log || { tail -n 30 example.log; exit 1; }
[ -s results/my/collected.h5 ] || { echo "no results"; ls -R results; exit 1; }
echo "readme example: works"
