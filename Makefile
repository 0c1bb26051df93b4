# Each target sets itself up: Python 3.11+, make and a package index are all that must be there.
PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# DVC's stages call plain `python`, and its queue workers plain `dvc`.
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.venv/bootstrap/bin:$(PATH)
ready := .venv/installed

.PHONY: .venv detectron2 repro test test-slow check format lock bench

repro: $(ready)  ## the whole experiment of params.yaml, to report/index.html
	dvc repro
	@echo "Open report/index.html in a browser."

test: $(ready)  ## everything that takes minutes, not hours
	python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(ready)  ## learning over three seeds and other tests that take long
	python -m pytest -m slow

check: $(ready)  ## format, lint, types, shell scripts, Dockerfile, Kubernetes manifests
	ruff format --check .
	ruff check .
	mypy
	git ls-files -z -- '*.sh' .ci/run docker/check | xargs -0 shellcheck
	hadolint Dockerfile
	kubernetes-validate --strict --quiet docker/kubernetes/*.yaml

format: $(ready)
	ruff format .
	ruff check --fix .

bench: $(ready)  ## ratios against dense forms and peers, side by side in one run
	python -m benchmarks.log_partition
	python -W ignore -m benchmarks.loading
	python -W ignore -m benchmarks.step
	python -W ignore -m benchmarks.evaluation
	python -m benchmarks.remote

.venv: $(ready)  ## the environment alone

detectron2: $(ready)  ## compiled from its repository, for transfers with engine=detectron2; needs git, a C++ compiler and minutes
	VIRTUAL_ENV=$(CURDIR)/.venv uv pip install --no-build-isolation --constraint docker/requirements.lock -r docker/detectron2.txt

$(ready): requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"cl needs Python 3.11 or newer, found {v.major}.{v.minor}: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv
	command -v uv >/dev/null || { $(PYTHON) -m venv .venv/bootstrap && .venv/bootstrap/bin/pip install --quiet uv; }
	VIRTUAL_ENV=$(CURDIR)/.venv uv pip sync --quiet --require-hashes requirements.lock
	touch $@

compile := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet --upgrade
lock:  ## resolve the versions anew, for .venv and for the image
	$(compile) --group dev --output-file requirements.lock
	$(compile) --extra cloud --extra detectron2 --constraint requirements.lock --output-file docker/requirements.lock
