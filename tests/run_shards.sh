#!/usr/bin/env bash
# Runs programs of GoogleTest, each in several processes at once: many tests to a process, where
# ctest starts one for each test, which under sanitizers takes longer than most tests.
# Usage: tests/run_shards.sh JOBS PROGRAM...
set -euo pipefail
jobs=$1
shift
shards=$((4 * jobs))  # of each program: the last ones to end leave little time unused
export shards
logs=$(mktemp -d)
export logs
trap 'rm -rf "$logs"' EXIT

run_shard() {
  local program=$1 shard=$2 code=0
  local log=$logs/${program##*/}.$shard
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard \
    timeout 900 "$program" --gtest_brief=1 >"$log" 2>&1 || code=$?
  if ((code)); then
    printf '==== %s, shard %d of %d: exit %d\n' "${program##*/}" "$shard" "$shards" "$code"
    tail -n 100 "$log"
    return 1
  fi
}
export -f run_shard

failed=0
for program in "$@"; do
  for ((shard = 0; shard < shards; shard++)); do printf '%s\0%s\0' "$program" "$shard"; done
done | xargs -0 -P "$jobs" -n 2 bash -c 'run_shard "$0" "$1"' || failed=1
cat "$logs"/* | awk '/^\[==========\] [0-9]+ tests? from/ { tests += $2 }
  END { printf "%d tests ran\n", tests; exit tests == 0 }' || failed=1
exit "$failed"
