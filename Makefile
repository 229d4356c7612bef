# `make test` sets up what it needs and passes on a fresh machine.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0

.PHONY: help demo serve docs dist test test-all test-kernels lint bench tiny clean

help:
	@echo "make demo          set up (no torch) and run the demo: icons, tiny CLIP, adaptation, report"
	@echo "make serve         set up (no torch) and serve a classifier that adapts, with its page; SERVE are options"
	@echo "make docs          set up and build the docs site into out/site"
	@echo "make dist          set up and build wheel and sdist into dist"
	@echo "make test          set up and run lint, types, import direction and all quick tests"
	@echo "make test-all      the same, with what takes long: full benchmarks, all methods"
	@echo "make test-kernels  the numeric tests under the kernels of other CPUs; ARGS go to pytest"
	@echo "make bench         the speed and memory table; fails where a bar is missed"
	@echo "make tiny          train the tiny CLIP anew (half an hour on 2 fast cores)"
	@echo "make clean         remove the environment and caches"

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -e '.[demo]'
	@touch $@

# torch before whatever depends on it, so that the pinned build is the one that stays.
$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --no-deps $(TORCHVISION)
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@

demo: $(VENV)/.core
	@mkdir -p out
	$(BIN)/soba demo -o out/soba-demo.html

$(VENV)/.serve: $(VENV)/.core
	$(BIN)/pip install --quiet -e '.[demo,serve]'
	@touch $@

serve: $(VENV)/.serve
	@mkdir -p out
	$(BIN)/soba serve --store sqlite:///out/soba-streams.db $(SERVE)

docs: $(VENV)/.dev
	$(BIN)/zensical build --strict

dist: $(VENV)/.dev
	$(BIN)/python -m hatchling build

tiny: $(VENV)/.dev
	$(BIN)/python training/train.py
	$(BIN)/python training/export.py
	$(BIN)/python training/report.py
	@rm out/training/checkpoint.pt

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A process for each core; the tests of a file stay together, since they share servers.
test: lint
	$(BIN)/python -m pytest -q -n auto --dist loadfile --durations 20

test-all: lint
	SOBA_LONG=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --durations 20
	$(BIN)/python perf/speed.py
	$(BIN)/python perf/core.py
	$(BIN)/python perf/views.py
	$(BIN)/python perf/classify.py
	$(BIN)/python perf/durable.py
	$(BIN)/python perf/serve.py

test-kernels: $(VENV)/.dev
	$(BIN)/python tests/kernels.py $(ARGS)

bench: $(VENV)/.core
	$(BIN)/python perf/speed.py
	$(BIN)/python perf/core.py
	$(BIN)/python perf/views.py
	$(BIN)/python perf/classify.py
	$(BIN)/python perf/durable.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache out
