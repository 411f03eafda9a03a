# The verbs of servelab. `make` or `make help` lists them.
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SERVELAB_WERROR ?= OFF
CMAKE_FLAGS ?=
SETUP_FLAGS ?=
MUTATE_FLAGS ?=

# Traces and measured profiles: $SERVELAB_DATA, or the first of these folders that exists.
ifndef SERVELAB_DATA
  DATA_FOLDER := $(firstword $(wildcard ../shared/data data/downloads))
  ifneq ($(DATA_FOLDER),)
    export SERVELAB_DATA := $(CURDIR)/$(DATA_FOLDER)
  endif
else
  override SERVELAB_DATA := $(value SERVELAB_DATA)
  export SERVELAB_DATA
endif

# ccache then serves every clone of this tree, wherever it lies.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

# What users set goes to commands through the environment, as it was typed: neither make nor a
# shell takes a part of it for something to run. CMAKE_FLAGS and SETUP_FLAGS are words, which xargs
# tells apart: by blanks, outside of quotes.
override BUILD := $(value BUILD)
override JOBS := $(if $(filter undefined default file,$(origin JOBS)),$(JOBS),$(value JOBS))
override SERVELAB_WERROR := $(value SERVELAB_WERROR)
override CMAKE_FLAGS := $(value CMAKE_FLAGS)
override SETUP_FLAGS := $(value SETUP_FLAGS)
override MUTATE_FLAGS := $(value MUTATE_FLAGS)
override FUZZ_SECONDS := $(or $(value FUZZ_SECONDS),30)
override FROM := $(value FROM)
override OUT := $(value OUT)
override BUNDLE := $(value BUNDLE)
override PROFILE := $(value PROFILE)
override PYTHON := $(if $(filter command,$(origin PYTHON)),$(value PYTHON),.venv/bin/python)
override SERVELAB := $(if $(filter command,$(origin SERVELAB)),$(value SERVELAB),$(BUILD)/servelab)
export BUILD JOBS SERVELAB_WERROR CMAKE_FLAGS SETUP_FLAGS MUTATE_FLAGS FUZZ_SECONDS FROM OUT \
       BUNDLE PROFILE
export PYTHON SERVELAB

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

SETUP := xargs <<<"$$SETUP_FLAGS" .ci/setup
# Data sets are not figures: predictors are fitted to them (servelab train).
ALL_SPECS := $(sort $(filter-out experiments/base/% experiments/smoke/% %/claims.yaml \
               experiments/placement/dataset_% experiments/placement/margin_%, \
               $(wildcard experiments/*/*.yaml)))
# Specs that run the CPU engine in wall-clock time have a verb of their own.
CPU_SPECS := $(sort $(shell grep -lE '^(backend: cpu|  backend: .*cpu)' $(ALL_SPECS) /dev/null))
GPU_SPECS := $(sort $(shell grep -lE '^(backend: cuda|  backend: .*cuda)' $(ALL_SPECS) /dev/null))
SPECS := $(filter-out $(CPU_SPECS) $(GPU_SPECS),$(ALL_SPECS))
SMOKE_SPECS := $(sort $(wildcard experiments/smoke/*.yaml))
spec_ids = $(patsubst experiments/%.yaml,%,$(1))

KNOWN := $(call spec_ids,$(ALL_SPECS) $(SMOKE_SPECS))
UNKNOWN := $(filter-out $(addprefix figures/,$(KNOWN)),$(filter figures/%,$(MAKECMDGOALS)))
ifneq ($(if $(FROM),,$(UNKNOWN)),)
  $(error no $(UNKNOWN:figures/%=experiments/%.yaml); known: $(KNOWN))
endif

# configure FOLDER,PARTS,FLAGS: runs CMake when the folder is new, has fewer parts or other flags;
# FOLDER and FLAGS are words of the shell. Parts: 1, the program without CUDA; 2, with tests; 3, all
# that this machine can build. Ninja if it is there and the folder was not made for another
# generator.
define configure
@folder=$(1); stamp="$$folder/.servelab-flags"; before=; parts=$(2); \
if [ -f "$$stamp" ]; then before=$$(<"$$stamp"); fi; \
case $$before in [123]' '*) if [ "$${before%% *}" -gt $$parts ]; then parts=$${before%% *}; fi ;; esac; \
case $$parts in \
  1) flags='-DSERVELAB_CUDA=OFF -DSERVELAB_TESTS=OFF' ;; \
  2) flags='-DSERVELAB_CUDA=OFF -DSERVELAB_TESTS=ON' ;; \
  *) flags='-DSERVELAB_CUDA=AUTO -DSERVELAB_TESTS=ON' ;; \
esac; \
flags+=" -DSERVELAB_WERROR=$$SERVELAB_WERROR "$(3)" $$CMAKE_FLAGS"; \
if [ "$$before" != "$$parts $$flags" ]; then \
  generator=(); \
  if [ ! -f "$$folder/CMakeCache.txt" ] && ninja --version >/dev/null 2>&1; then \
    generator=(-G Ninja); fi; \
  xargs <<<"$$flags" cmake -S . -B "$$folder" "$${generator[@]}"; \
  printf '%s %s\n' "$$parts" "$$flags" >"$$stamp"; \
fi
endef

.PHONY: help setup program python build test figures report cpu-figures gpu-bundle gpu-check gpu-figures \
        fuzz bench bench-peers mutate check-format sanitize smoke doctor clean force

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z][^:]*:.*## / { printf "  make %-24s %s\n", $$1, $$2 } \
	  /^#! / { line = substr($$0, 4); split(line, part, " *## "); \
	           printf "  make %-24s %s\n", part[1], part[2] }' Makefile
	@printf '%s\n' "Variables: BUILD=$$BUILD JOBS=$$JOBS SERVELAB_WERROR=$$SERVELAB_WERROR \
	CMAKE_FLAGS=$$CMAKE_FLAGS SERVELAB_DATA=$${SERVELAB_DATA:-(none: embedded workloads)}"

setup:  ## install what is missing and make the Python environment .venv
	@$(SETUP)

python:
	@$(SETUP) --only-python

program:
	@$(SETUP) --no-python
	$(call configure,"$$BUILD",1)
	@cmake --build "$$BUILD" -j "$$JOBS" --target servelab

build:  ## build everything into BUILD: programs, tests and benchmarks, CUDA's where it is found
	@$(SETUP) --no-python --tests
	$(call configure,"$$BUILD",3)
	@cmake --build "$$BUILD" -j "$$JOBS"

test: build  ## build, then every C++ and Python test
	@$(SETUP) --only-python --tests
	@ctest --test-dir "$$BUILD" --output-on-failure -E '\.'
	@shopt -s nullglob; tests/run_shards.sh "$$JOBS" "$$BUILD"/tests/{,*/}servelab_*tests
	"$$PYTHON" -m pytest -q -rs -n "$$JOBS" --dist loadgroup \
	  tests/analysis tests/executors

# The name in a goal, for commands, as FROM above.
figures/% conformance/%: export NAME = $*

#! conformance/<technique>  ## run the suite that every technique must pass for one
conformance/%: python force
	@$(SETUP) --no-python --tests
	$(call configure,"$$BUILD",2)
	@cmake --build "$$BUILD" -j "$$JOBS" --target servelab servelab_conformance_tests
	@"$$SERVELAB" show "$$NAME" >/dev/null
	"$$BUILD/tests/servelab_conformance_tests" --gtest_brief=1 \
	  --gtest_filter="Techniques/Conformance.*/$${NAME//-/_}"

# FROM=archive: its figures, checked and drawn in OUT; nothing is built or run.
define draw_archive
name="$${FROM%/}"; name="$${name##*/}"; \
"$$PYTHON" -m analysis.archive verify "--out=$${OUT:-results/from/$${name%.tar.zst}}"
endef
ifneq ($(FROM),)
figures: python
	$(draw_archive) -- "$$FROM"

figures/%: python force
	$(draw_archive) --only "$$NAME" -- "$$FROM"
else
figures: program python  ## run what changed, draw, judge, report; FROM=archive: draw it
	@[ -n '$(SPECS)' ] || { echo 'figures: no specs under experiments/<paper>/' >&2; exit 1; }
	"$$SERVELAB" run $(SPECS)
	"$$PYTHON" -m analysis.draw $(call spec_ids,$(SPECS))
	"$$PYTHON" -m analysis.verdicts
	"$$PYTHON" -m analysis.report

#! figures/<paper>/<fig>  ## run and draw one, such as figures/dlora/fig10
figures/%: program python force
	"$$SERVELAB" run "experiments/$$NAME.yaml"
	"$$PYTHON" -m analysis.draw "$$NAME"
endif

report: python  ## claims, verdicts and figures of what is in results, as results/report.html and .md
	"$$PYTHON" -m analysis.report

cpu-figures: program python  ## the figures measured on the CPU engine, in wall-clock time (about 50 minutes)
	"$$SERVELAB" run $(CPU_SPECS)
	"$$PYTHON" -m analysis.draw $(call spec_ids,$(CPU_SPECS))

# For a machine with a GPU and without our libraries: what gpu-check and gpu-figures need, built here.
GPU_PROGRAMS = servelab tests/gpu/servelab_gpu_tests tests/cuda_engine/servelab_gpu_engine_tests \
               tests/cuda_engine/servelab_cuda_engine_bench kernels/bench/servelab_cuda_bench
gpu-bundle: build  ## the CUDA programs and their libraries, to be carried to a GPU machine
	tests/gpu/bundle.sh "$$BUILD/gpu-bundle" $(patsubst %,"$$BUILD"/%,$(GPU_PROGRAMS))

# BUNDLE=dir: the programs of a bundle, unpacked, in place of a build.
need_out = @[ -n "$$OUT" ] || { echo '$@: OUT=dir is missing: where results go' >&2; exit 2; }
gpu_build = @[ -n "$$BUNDLE" ] || ! command -v nvidia-smi >/dev/null || $(MAKE) build python
GPU_PYTHON = "$$([ -x "$$PYTHON" ] && echo "$$PYTHON" || echo python3)"
gpu-check:  ## OUT=dir: test, benchmark and calibrate on this machine's GPU, in under 8 minutes
	$(need_out)
	$(gpu_build)
	$(GPU_PYTHON) tests/gpu/check.py --binaries "$${BUNDLE:-$$BUILD}" -- "$$OUT"

gpu-figures:  ## OUT=dir: a slice of at most 7 minutes of the GPU figures; again until all are there
	$(need_out)
	$(gpu_build)
	@program=$$SERVELAB; \
	if [ -n "$$BUNDLE" ]; then \
	  program="$$BUNDLE/bin/servelab"; \
	  LD_LIBRARY_PATH="$$(realpath "$$BUNDLE")/lib:$${LD_LIBRARY_PATH-}"; export LD_LIBRARY_PATH; \
	fi; \
	"$$program" run --time-limit 400 "--out=$$OUT" $${PROFILE:+"--profile=$$PROFILE"} $(GPU_SPECS)

smoke: program  ## run the specs in experiments/smoke
	@[ -n '$(SMOKE_SPECS)' ] || { echo 'smoke: no specs in experiments/smoke' >&2; exit 1; }
	"$$SERVELAB" run $(SMOKE_SPECS)

doctor: program  ## what this machine lacks, what that costs, and what mends it
	@"$$SERVELAB" doctor

mutate:  ## plant faults in a copy, one at a time: do the tests notice? An hour; MUTATE_FLAGS='--only serve'
	@$(SETUP) --tests
	xargs <<<"$$MUTATE_FLAGS" "$$PYTHON" tests/mutation/mutate.py --jobs "$$JOBS"

bench: build  ## kernels, engine steps and the serving core against the machine's bounds
	@[ -x "$$BUILD/tests/servelab_bench" ] || { echo "bench: $$BUILD/tests/servelab_bench was" \
	  'not built: it needs Google Benchmark (libbenchmark-dev) and tests/bench/*_bench.cc' >&2; \
	  exit 1; }
	"$$BUILD/kernels/bench/servelab_kernel_bench"
	-"$$BUILD/tests/servelab_engine_bench"
	"$$BUILD/tests/servelab_bench"

PEERS := tests/bench/peers
bench-peers: build python  ## the CPU engine beside llama.cpp, compiled here first (10 minutes, once)
	@env="$$BUILD/peers/env"; \
	cmp -s $(PEERS)/requirements.txt "$$env/requirements.txt" || { \
	  "$$PYTHON" -m venv --clear "$$env" && \
	  CMAKE_ARGS=-DGGML_NATIVE=ON CMAKE_BUILD_PARALLEL_LEVEL="$$JOBS" "$$env/bin/python" -m pip \
	    install --quiet --disable-pip-version-check --no-binary llama-cpp-python \
	    -r $(PEERS)/requirements.txt && cp $(PEERS)/requirements.txt "$$env"; }
	"$$BUILD/peers/env/bin/python" $(PEERS)/compare.py "$$BUILD"

fuzz:  ## fuzz the parsers of what comes from outside, FUZZ_SECONDS each (30)
	@$(SETUP) --tests --fuzz
	BUILD=build-fuzz tests/fuzz/run.sh "$$FUZZ_SECONDS"

# Clang, where it is there: it compiles such code in half of GCC's time, and tests/determinism.sh
# then compares two compilers. What UNSANITIZED names measures a size and takes a minute so built.
UNSANITIZED := PointFile.ARequestTakesLessThan100Bytes
sanitize:  ## unit and technique tests under ASan and UBSan, in build-sanitize
	@$(SETUP) --no-python --tests --fuzz
	$(call configure,build-sanitize,3,"-DSERVELAB_SANITIZE=ON -DCMAKE_BUILD_TYPE=Sanitize \
	  -DCMAKE_CXX_FLAGS_SANITIZE='-O0 -g1' \
	  $$(command -v clang++ | sed s/^/-DCMAKE_CXX_COMPILER=/)")
	@cmake --build build-sanitize -j "$$JOBS" --target servelab_sanitized_tests
	@shopt -s nullglob; GTEST_FILTER=-$(UNSANITIZED) \
	  tests/run_shards.sh "$$JOBS" build-sanitize/tests/{,*/}servelab_*tests

FORMATTED = find engine kernels baselines tests -name '*.h' -o -name '*.cc' -o -name '*.cu' \
              -o -name '*.cuh'
check-format:  ## clang-format in dry-run mode, and no line over 100 columns
	@$(SETUP) --no-python --format
	@command -v clang-format >/dev/null || { \
	  echo 'check-format: clang-format not found; packages: clang-format (Debian, conda-forge),' \
	       'clang-tools-extra (Fedora)' >&2; exit 1; }
	@$(FORMATTED) | xargs -r clang-format --dry-run -Werror
	@{ $(FORMATTED); find analysis data tests .ci -name '*.py'; } | xargs -r awk \
	  'length($$0) > 100 { printf "%s:%d: %d columns\n", FILENAME, FNR, length($$0); bad = 1 } \
	   END { exit bad }'

clean:  ## remove the build folders (results and .venv stay)
	@for folder in "$$BUILD" build-sanitize build-fuzz; do \
	  if [ -f "$$folder/CMakeCache.txt" ]; then rm -rf -- "$$folder"; fi; done
