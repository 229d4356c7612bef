# `make test` sets up what it needs and passes on a fresh machine.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0

.PHONY: help demo test test-all lint bench clean

help:
	@echo "make demo      set up (no torch) and compare the methods on a feature file (FILE=...)"
	@echo "make test      set up and run lint, types, import direction and all quick tests"
	@echo "make test-all  the same, with what takes long: the full benchmark"
	@echo "make bench     the speed and memory table"
	@echo "make clean     remove the environment and caches"

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -e '.[cli,bench]'
	@touch $@

# torch before whatever depends on it, so that the pinned build is the one that stays.
$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@

FILE ?= out/synthetic.npz

demo: $(VENV)/.core
	@test -f $(FILE) || $(BIN)/python examples/synthetic_features.py $(FILE)
	$(BIN)/soba eval $(FILE)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -q

test-all: lint
	SOBA_LONG=1 $(BIN)/python -m pytest -q
	$(BIN)/python benchmarks/speed.py

bench: $(VENV)/.core
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache out
