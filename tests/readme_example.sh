#!/usr/bin/env bash
# A newcomer's walk: types the README's "Add your technique in one file", as it stands there, in one
# checkout; then its "On a clean checkout" in another that was never built, to which only the archive
# is brought. Checks what comes out at each station.
# Usage: tests/readme_example.sh [CHECKOUT CLEAN]   (default: two copies of this tree)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tree=$PWD

fail() { printf 'readme example: %s\n' "$*" >&2; exit 1; }

# copy FOLDER: what git would check out, and this tree's .venv if it is current: making it anew is
# setup's own test.
copy() {
  mkdir "$1"
  git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - |
    tar -xf - -C "$1"
  if [[ -d $tree/.venv ]]; then ln -s "$(readlink -f "$tree/.venv")" "$1/.venv"; fi
}

if (($# == 2)); then
  built=$(realpath "$1") clean=$(realpath "$2")
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  built=$work/built clean=$work/clean
  copy "$built"
  copy "$clean"
fi

# type_section HEADING LOG: runs the shell blocks below a heading, up to the next one.
type_section() {
  awk -v heading="$1" '/^##+ / { inside = $0 == heading; next }
       inside && /^```sh/ { code = 1; next } /^```/ { code = 0 } inside && code' README.md >typed.sh
  [[ -s typed.sh ]] || fail "README.md has no commands below '$1'"
  bash -euo pipefail typed.sh >"$2" 2>&1 || { tail -n 60 "$2"; fail "'$1' ended with an error"; }
}

cd "$built"
type_section '## Add your technique in one file' built.log
changes=$(diff baselines/template.cc baselines/shortest_prompt.cc | grep -c '^[<>]' || true)
((changes > 0)) || fail "the technique is the template"
grep -q 'shortest-prompt' <(build/servelab list) || fail "the technique is not listed"
grep -q '\[  PASSED  \] [1-9]' built.log || { tail -n 30 built.log; fail "no conformance test ran"; }
out=results/compare/mine
grep -Eq '^Over 3 seeds, shortest-prompt ' built.log || fail "compare says no sentence"
sed -n '/^Over 3 seeds/,/^$/p' built.log
for technique in shortest-prompt slora dlora template; do
  grep -q "^.*\b$technique\b" "$out/compare.csv" || fail "compare.csv has no row of $technique"
done
for file in compare.html compare.csv runs/collected.h5; do
  [[ -s $out/$file ]] || fail "no $out/$file"
done

mv mine.tar.zst "$clean/"
cd "$clean"
type_section '### On a clean checkout' clean.log
[[ ! -e build ]] || fail "verifying an archive built something"
grep -q 'mine.tar.zst: whole' clean.log || { cat clean.log; fail "the archive is not whole"; }
grep -q 'drawn again, the same bytes' clean.log || { cat clean.log; fail "not redrawn the same"; }
[[ -s mine/archive.json && -s mine/results/runs/collected.h5 ]] || fail "nothing was unpacked"
find results/from/mine -name '*.png' | grep -q . || fail "make figures FROM= drew nothing"
echo "readme example: works"
