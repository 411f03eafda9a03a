#!/usr/bin/env bash
# Builds the fuzzers and runs each for some seconds: tests/fuzz/run.sh [seconds each, default 30].
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
for fuzzer in safetensors_fuzz adapter_config_fuzz; do
  mkdir -p "$build/corpus/$fuzzer"
  echo "fuzz: $fuzzer, $seconds s"
  "$build/$fuzzer" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -max_len=4096 \
    -dict="$here/json.dict" -artifact_prefix="$build/findings/$fuzzer-" -print_final_stats=1 \
    -verbosity=0 "$build/corpus/$fuzzer" "$build/seeds/$fuzzer" 2>&1 |
    sed '/^###### Recommended/,/^###### End/d'
done
