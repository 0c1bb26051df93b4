# Each target sets itself up; it needs only Python 3.11 or newer, make and a package index.
PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# DVC's stages call `python`, and its queue workers call `dvc`.
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.venv/bootstrap/bin:$(PATH)
ready := .venv/installed

.PHONY: repro table help test test-gpu test-slow golden check format bench gpu-day .venv detectron2 lock

repro: $(ready)  ## Run the whole experiment of params.yaml, up to report/index.html (the default target).
	@git rev-parse --is-inside-work-tree > /dev/null 2>&1 || { echo "DVC needs Git: run \`git init && git add -A && git commit -m start\` here first"; exit 1; }
	dvc repro
	@echo "The report is report/index.html, the encoder models/backbone.safetensors."

table: $(ready)  ## List all finished experiments: data, method, loss, seed and results.
	@python -m pipeline.report --table

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# The C library keeps freed memory instead of asking Linux for it again and again: a twentieth less time. One thread
# for each of two processes: more wait for each other, which costs processor time.
test_variables := MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=67108864 OMP_NUM_THREADS=1

test: $(ready)  ## Run the fast tests, in minutes.
	$(test_variables) python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-gpu: $(ready)  ## Run the tests that need an NVIDIA GPU, which the others do not use.
	python -m pytest -m gpu -rs

test-slow: $(ready)  ## Run the slow tests, for example learning over three seeds, in hours.
	python -m pytest -m slow

golden: $(ready)  ## Record the golden values of methods that have none.
	python -m tests.support.golden

check: $(ready)  ## Check format, lint, types, shell scripts, Dockerfile and Kubernetes manifests.
	ruff format --check .
	ruff check .
	mypy
	git ls-files -z -- '*.sh' .ci/run docker/check | xargs -0 shellcheck
	hadolint Dockerfile
	kubernetes-validate --strict --quiet docker/kubernetes/*.yaml

format: $(ready)  ## Format the code and fix what the linter can fix.
	ruff format .
	ruff check --fix .

bench: $(ready)  ## Compare speed and memory with dense forms, other libraries and an earlier commit.
	python -m benchmarks.log_partition
	python -m benchmarks.sums
	python -W ignore -m benchmarks.loading
	python -W ignore -m benchmarks.band_loading
	python -W ignore -m benchmarks.step
	python -W ignore -m benchmarks.evaluation
	python -m benchmarks.remote
	python -W ignore -m benchmarks.versions

gpu-day: $(ready)  ## Check results on a GPU against the CPU, and measure its speed, in 15 minutes.
	python -W ignore -m benchmarks.gpu.day

.venv: $(ready)  ## Create only the environment.

detectron2: $(ready)  ## Compile detectron2, for transfers with engine=detectron2 (needs git and a C++ compiler).
	VIRTUAL_ENV=$(CURDIR)/.venv uv pip install --no-build-isolation --constraint docker/requirements.lock -r docker/detectron2.txt

$(ready): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"cl needs Python 3.11 or newer, found {v.major}.{v.minor}; run make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)")'
	@echo "Installing 4.6 GB into .venv, in minutes"
	@$(PYTHON) -m venv .venv
	@command -v uv >/dev/null || { $(PYTHON) -m venv .venv/bootstrap && .venv/bootstrap/bin/pip install --quiet uv; }
	@VIRTUAL_ENV=$(CURDIR)/.venv uv pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/.venv uv pip install --quiet --no-deps --no-build-isolation --editable .
	@pipeline/set_up.sh $(CURDIR)/.venv $(CURDIR)
	@touch $@

compile := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet --upgrade
lock:  ## Lock the newest versions of all dependencies, for .venv and for the image.
	$(compile) --extra pipeline --group dev --output-file requirements.lock
	$(compile) --extra pipeline --extra cloud --extra detectron2 --extra heic --extra bands --constraint requirements.lock --output-file docker/requirements.lock
