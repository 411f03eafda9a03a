#!/usr/bin/env bash
# Runs programs of GoogleTest, each in several processes at once: many tests to a process, where
# ctest starts one for each test, which takes longer than most tests. Shows what failed with all
# that it printed, names the test that ended its process, counts those behind it as failed, and says
# why tests were skipped and which took longest. The last line is "N passed, N failed, N skipped".
# Usage: tests/run_shards.sh JOBS PROGRAM...
set -euo pipefail
jobs=$1
shift
shards=$((4 * jobs))  # of each program: the last ones to end leave little time unused
logs=$(mktemp -d)
export shards logs
trap 'rm -rf "$logs"' EXIT

# Reads what one process printed. Writes to `counts` and `reasons`; shows what went wrong.
read_log='
  function ends(how) { return test != "" && index($0, how " " test) }
  test == "" && /^\[==========\] Running / { expected = $3; started = 1 }
  /\[ RUN      \] / { test = $NF; text = reason = ""; inside = 0; next }
  ends("[       OK ]") {
    ++passed; print substr($(NF - 1), 2), program, test >>times; test = ""; next
  }
  ends("[  SKIPPED ]") { ++skipped; test = ""; print program ": " reason >>reasons; next }
  ends("[  FAILED  ]") { ++failed; printf "%s%s\n", text, $0; test = ""; next }
  test != "" { text = text $0 "\n" }
  test != "" && inside { if ($0 == "") inside = 0; else reason = reason (reason ? " " : "") $0 }
  /: Skipped$/ { inside = 1 }
  END {
    lost = expected - passed - failed - skipped
    if (test != "") {
      printf "%s%s ended its process (exit %d)", text, test, code
      printf "; %d behind it did not run\n", lost - 1
    } else if (lost || !started || code && !failed) {
      printf "shard %d: exit %d %s its tests\n", shard, code, started && !lost ? "after" : "before"
      if (!lost) ++failed
    }
    failed += lost
    print passed + 0, failed + 0, skipped + 0 >>counts
    exit failed > 0
  }'
export read_log

run_shard() {
  local program=$1 shard=$2 code=0 shown
  local name=${program##*/}
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard GTEST_COLOR=no \
    timeout 900 "$program" >"$logs/$name.$shard" 2>&1 || code=$?
  if ! shown=$(awk -v program="$name" -v shard="$shard" -v code="$code" -v counts="$logs/counts" \
    -v reasons="$logs/reasons" -v times="$logs/times" "$read_log" "$logs/$name.$shard"); then
    printf '==== %s\n%s\n' "$name" "$shown"
    # What is printed outside of a test, as by a sanitizer at the end.
    if [[ $shown != *'[  FAILED  ]'* ]]; then tail -n 60 "$logs/$name.$shard"; fi
  fi
}
export -f run_shard

for program in "$@"; do
  for ((shard = 0; shard < shards; shard++)); do printf '%s\0%s\0' "$program" "$shard"; done
done | xargs -0 -r -P "$jobs" -n 2 bash -c 'run_shard "$0" "$1"'
if [[ -s $logs/reasons ]]; then
  sort "$logs/reasons" | uniq -c | while read -r count reason; do
    printf 'skipped %d of %s\n' "$count" "$reason"
  done
fi
touch "$logs/counts" "$logs/times"
sort -rn "$logs/times" | awk -v most="${SLOWEST:-3}" \
  'NR <= most { printf "%7d ms  %s: %s\n", $1, $2, $3 }'
awk '{ passed += $1; failed += $2; skipped += $3 }
  END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        exit failed > 0 || passed == 0 }' "$logs/counts"
