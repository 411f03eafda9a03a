#!/usr/bin/env bash
# Builds the fuzzers and runs each for some seconds: tests/fuzz/run.sh [seconds each, default 30].
# What reads results in Python has no coverage to follow: it runs three times as long, and tries 300
# inputs at least, 80 s of one core (tests/fuzz/readers.py), from the seed $FUZZ_SEED (default 0).
# A finding ends it with the failing input kept in $BUILD/findings. Variables: BUILD (default
# build-fuzz), CXX (default clang++).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${1:-30}
build=${BUILD:-$here/../../build-fuzz}
compiler=${CXX:-clang++}

case $compiler in
  *clang*) ;;
  *) compiler=clang++ ;;
esac
if ! command -v "$compiler" >/dev/null; then
  echo "fuzz: $compiler not found; packages: clang (Debian, Fedora), clangxx (conda-forge)" >&2
  exit 1
fi
cmake -S "$here" -B "$build" -DSERVELAB_FUZZ=ON -DCMAKE_CXX_COMPILER="$compiler" >/dev/null
cmake --build "$build" -j "${JOBS:-2}"

mkdir -p "$build/findings"
python3 "$here/make_corpus.py" "$build/seeds"
run_fuzzer() {
  mkdir -p "$build/corpus/$1"
  "$build/$1" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -max_len=4096 \
    -dict="$here/json.dict" -artifact_prefix="$build/findings/$1-" -print_final_stats=1 \
    -verbosity=0 "$build/corpus/$1" "$build/seeds/$1" >"$build/$1.log" 2>&1
}

# Each fuzzer is one thread: all at once, and what they say one after the other.
fuzzers=(safetensors_fuzz adapter_config_fuzz rank_messages_fuzz score_fuzz)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
for fuzzer in "${fuzzers[@]}"; do
  run_fuzzer "$fuzzer" &
  pids+=($!)
done
"$here/../../.venv/bin/python" "$here/readers.py" --seconds $((3 * seconds)) \
  --least 300 --first "${FUZZ_SEED:-0}" >"$build/readers.log" 2>&1 &
readers=$!
pids+=($!)
failed=0
for i in "${!fuzzers[@]}"; do
  code=0
  wait "${pids[i]}" || code=$?
  echo "fuzz: ${fuzzers[i]}, $seconds s: exit $code"
  sed '/^###### Recommended/,/^###### End/d' "$build/${fuzzers[i]}.log"
  if ((code)); then failed=$code; fi
done
code=0
wait "$readers" || code=$?
cat "$build/readers.log"
if ((code)); then failed=$code; fi
exit "$failed"
