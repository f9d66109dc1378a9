# The verbs people type. Each calls cmake, ctest or a script; scripts/setup installs missing Debian packages first.

.DEFAULT_GOAL := help
.PHONY: help build debug demo test lint format asan tsan fuzz bench crash abuse soak tokenizers gpu gpu-bundle gpu-check docs image image-test clean

JOBS ?= $(shell nproc)
CTEST = ctest --output-on-failure --no-tests=error

help: ## show the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## release build: build/bin/ebbd, ebb and ebb-lab
	@scripts/setup build
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS) --target ebbd ebb ebb-lab

debug: ## debug build with checks and symbols, in build/debug
	@scripts/setup build
	cmake --preset debug -Wno-dev
	cmake --build --preset debug -j $(JOBS)

demo: build ## a conversation that runs past its cache budget, under three policies
	@scripts/demo

test: ## unit, property, golden, integration, e2e and tidy tests
	@scripts/setup build test
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS)
	$(CTEST) --test-dir build/release -j $(JOBS)
	@scripts/not-run build/release
	@build/release/tests/golden/golden_folder

lint: ## style checks, clang-format and clang-tidy on changed files (ALL=1: on every file)
	@scripts/setup build lint
	@scripts/lint $(if $(ALL),--all)

format: ## clang-format in place
	@scripts/setup lint
	@git ls-files '*.h' '*.cc' | xargs clang-format -i

asan: ## unit, property and integration tests under address and undefined sanitizers
	@scripts/setup build test fuzz
	cmake --preset asan -Wno-dev
	cmake --build --preset asan -j $(JOBS) --target ebb_unit_tests ebb_property_tests ebb_integration_tests
	$(CTEST) --test-dir build/asan -j $(JOBS) -L 'unit|property|integration' -E '_NOT_BUILT$$'

# Where our own threads meet: the pool under kernels and engine; the worker, the journal and those who talk to them, without
# gRPC and with it. What libraries do that are not built with the sanitizer is left out (ignore_noninstrumented_modules); what
# orders their threads it is told by tests/support/tsan_grpc.cc. gRPC ends its own threads when it likes, also after the process
# (report_thread_leaks); one of ours that nobody joined would have ended it. The console and the OpenAI port are left out: their calls go through
# channels within the process, whose messages gRPC hands over in one memory.
TSAN_TESTS = parallel_test ops_test attention_test engine_test steady_state_test server_base_test server_unit_test dispatcher_test worker_test \
  generation_test sessions_test eviction_test experiment_test durability_test swap_test tenants_test
tsan: ## engine, worker, journal and services under the thread sanitizer
	@scripts/setup build test
	cmake --preset tsan -Wno-dev
	cmake --build --preset tsan -j $(JOBS) --target $(TSAN_TESTS)
	TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 second_deadlock_stack=1 report_thread_leaks=0" \
	  $(CTEST) --test-dir build/tsan -j $(JOBS) -L 'unit|property|integration' -E '_NOT_BUILT$$'

fuzz: ## 10,000 inputs to each parser, from the committed corpus (TARGET=gguf: one of them; RUNS=1000000 SEED=7: others)
	@scripts/setup build test fuzz
	cmake --preset asan -Wno-dev -DEBB_FUZZ_RUNS=$(or $(RUNS),10000) -DEBB_FUZZ_SEED=$(or $(SEED),1)
	cmake --build --preset asan -j $(JOBS) --target ebb_fuzz_targets
	$(CTEST) --test-dir build/asan -L fuzz $(if $(TARGET),-R '^fuzz/$(TARGET)$$')

# Where nvcc and hipcc are found, or Debian's hipcc can be installed; neither is needed for anything else.
gpu: ## the GPU's kernels with nvcc and hipcc, where there are any; what was not compiled or not run is said
	@scripts/setup build
	@scripts/setup gpu || echo "gpu: no hipcc could be installed"
	cmake --preset release -Wno-dev -B build/gpu -DEBB_CUDA=AUTO -DEBB_HIP=AUTO
	cmake --build build/gpu -j $(JOBS) --target ebb_gpu_libraries
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS) --target gpu_library_test
	@scripts/gpu-libraries build/gpu build/release/tests/unit/engine/gpu/gpu_library_test

gpu-bundle: ## one folder that checks and measures an NVIDIA GPU where there is nothing but a driver: build/gpu-bundle/run
	@scripts/setup build test
	cmake --preset release -Wno-dev -B build/gpu -DEBB_CUDA=ON -DEBB_STATIC=ON -DEBB_BENCH=OFF
	cmake --build build/gpu -j $(JOBS) --target ebb_gpu_check ebb_gpu_cuda
	scripts/gpu-bundle build/gpu

gpu-check: gpu-bundle ## runs that folder here, where there is a device, and says so where there is none
	@scripts/gpu-check

docs: ## write docs/reference, dashboards and the chart's schema from code, and check every link in the docs
	@scripts/setup build test
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS) --target ebbd ebb ebb-lab docs_tables
	scripts/docs
	deploy/grafana/generate.py
	/usr/bin/python3 deploy/helm/generate.py
	tests/tidy/links.py

bench: ## ten minutes of `ebb bench`; writes docs/benchmarks/cpu.md (ONLY=decode: that part alone)
	@scripts/setup build test
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS) --target ebbd ebb
	scripts/bench $(if $(ONLY),--only $(ONLY))

tokenizers: ## 100,000 lines for each family of tokenizers, compared with Hugging Face's own (LINES=1000 SEED=7: others), and their speed
	@scripts/setup build test
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS) --target tokenize_lines
	/usr/bin/python3 -B tests/e2e/tokenizers_test.py --each --lines $(or $(LINES),100000) --seed $(or $(SEED),1)
	/usr/bin/python3 -B tests/e2e/tokenizers_test.py --speed

crash: ## kills servers that journal their sessions, alone and sharing a Redis, 200 times each, and compares (ROUNDS=20 SEED=7: others)
	@scripts/setup build test
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS) --target ebbd ebb
	EBB_BIN=build/bin /usr/bin/python3 -B tests/e2e/crash_test.py --rounds $(or $(ROUNDS),200) --seed $(or $(SEED),1)
	EBB_BIN=build/bin /usr/bin/python3 -B tests/e2e/shared_store_test.py --rounds $(or $(ROUNDS),200) --seed $(or $(SEED),1)

abuse: ## 100,000 random calls, floods, bombs and clients that vanish, against a build with AddressSanitizer, and how long others wait (CALLS=1000 SEED=7 ROUNDS=1: others)
	@scripts/setup build test fuzz
	cmake --preset asan -Wno-dev
	cmake --build --preset asan -j $(JOBS) --target ebbd ebb field_limits_test
	EBB_RANDOM_CALLS=$(or $(CALLS),100000) EBB_SEED=$(or $(SEED),1) build/asan/tests/integration/field_limits_test
	EBB_SANITIZED=1 EBB_BIN=build/asan/bin /usr/bin/python3 -B tests/e2e/abuse_test.py -v
	EBB_BIN=build/asan/bin /usr/bin/python3 -B tests/e2e/abuse_latency.py --rounds $(or $(ROUNDS),3)

soak: ## ten minutes of 200 streams of 20 tenants: no refusal, fair shares, no growth (SECONDS=60: others)
	@scripts/setup build test
	cmake --preset release -Wno-dev
	cmake --build --preset release -j $(JOBS) --target ebbd ebb soak_load
	EBB_BIN=build/bin EBB_SOAK_LOAD=build/release/tests/e2e/soak_load /usr/bin/python3 -B tests/e2e/soak_test.py --seconds $(or $(SECONDS),600)

image: ## the image of docker/Dockerfile, by buildah and of Debian's packages alone: build/image/ebb.tar, for docker load -i
	@scripts/setup image
	@scripts/image

image-test: build ## an image of the programs in build/bin, run read-only from its root filesystem, and by a Docker of its own where dockerd is installed
	@scripts/setup image test
	@scripts/image --prebuilt
	/usr/bin/python3 -B tests/e2e/built_image_test.py
	/usr/bin/python3 -B tests/e2e/docker_test.py

clean: ## remove build/
	rm -rf build
