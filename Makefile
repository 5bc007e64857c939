# Everything runs from the project's own environment, .venv, which the first call makes.
# A fresh machine needs Python >= 3.11 (with venv), make and a package index.

PYTHON ?= python3
VENV ?= .venv
RUN_DIR ?= runs/quickstart
# Where torch comes from; empty means pip's usual index. Give the address of PyTorch's CPU index to keep a
# Linux machine without a GPU from downloading the CUDA build.
TORCH_INDEX ?=

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check
# Packages are compiled to byte code when they are first imported, not when they are installed, since most modules are never
# imported. The byte code has to be kept: without it, every process compiles torch and its imports again, for half a minute.
unexport PYTHONDONTWRITEBYTECODE
install := $(pip) install --quiet --no-compile --constraint constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help environment demo test test-slow smoke lint format types docs wheel check hooks clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' Makefile

environment: $(VENV)/.all  ## install everything that `make check` needs in one go; the other targets install what they need

demo: $(VENV)/.quickstart  ## learn the packaged quickstart stream, offline, into RUN_DIR (runs/quickstart)
	HF_HUB_OFFLINE=1 WANDB_MODE=$${WANDB_MODE:-offline} $(bin)/continual-petl run quickstart --run-dir $(RUN_DIR)

test: $(VENV)/.dev  ## the default tests: small, seeded, offline
	$(bin)/pytest --numprocesses auto --dist loadfile $(ARGS)

test-slow: $(VENV)/.dev $(VENV)/.quickstart  ## the tests marked slow: the real MiniLM, many examples, a browser if there is one
	$(bin)/pytest --numprocesses auto --dist worksteal -m slow $(ARGS)

smoke: $(VENV)/.dev  ## the tests that the pre-commit hook runs; a few seconds
	$(bin)/pytest --quiet -m smoke

lint: $(VENV)/.dev  ## ruff: rules and format
	$(bin)/ruff check .
	$(bin)/ruff format --check .

format: $(VENV)/.dev  ## let ruff fix what it can
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

types: $(VENV)/.dev  ## mypy, strict
	$(bin)/mypy

docs: $(VENV)/.dev  ## build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict  # with --quiet, warnings would be neither shown nor counted

wheel: $(VENV)/.dev  ## build wheel and sdist into dist/, check them from an empty environment
	$(bin)/python .ci/check_wheel.py

check: lint types docs test wheel test-slow  ## lint, types, docs, test, wheel, test-slow: what CI runs

hooks: $(VENV)/.dev  ## run lint, types and smoke before every commit
	$(bin)/pre-commit install

clean:  ## remove what was built (the environment stays)
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

# The stamp files are in the environment, so everything is installed again once .venv is deleted or the requirements change.
# torch is installed first and alone, so that no other package's requirement determines its build.
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  f"{sys.executable} is Python {sys.version.split()[0]}; 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "installing into $(VENV), once; this takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(install) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(install) --editable '.[dev]'
	@touch $@

$(VENV)/.quickstart: $(VENV)/.torch pyproject.toml
	$(install) --editable '.[quickstart]'
	@touch $@

# Both extras in one call: pip takes as long to find that nothing is missing as to install a few small packages.
$(VENV)/.all: $(VENV)/.torch pyproject.toml
	$(install) --editable '.[dev,quickstart]'
	@touch $(VENV)/.dev $(VENV)/.quickstart $@
