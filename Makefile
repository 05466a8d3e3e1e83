# Every target makes and uses .venv; nothing but python3, Java 17, make and mvn has to be there.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
CODE := src tests $(wildcard bench examples)

# Two stamps, so that `make demo` needs the base install only.
BASE := $(VENV)/.base.stamp
DEV := $(VENV)/.dev.stamp

# bench/epoch.py is `make bench-epoch`; modules with a leading underscore are shared helpers.
BENCHES := $(filter-out _%,$(notdir $(basename $(wildcard bench/*.py))))
# tests/conftest.py says how many workers there are. A server belongs to one worker.
PYTEST := $(VENV)/bin/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder
# Tests, benchmarks and the matrix may install the servers that they start (as root, on Debian).
export BEADLINE_INSTALL_SERVERS ?= 1
BENCH_TARGETS := $(addprefix bench-,$(subst _,-,$(BENCHES)))

.PHONY: help demo test test-long check lint types format bench mutants matrix docs clean

help:  ## show this help
	@awk -F ':.*## ' '/^[a-z][a-z%-]*:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '  make bench-NAME  one of: %s\n' '$(subst bench-,,$(BENCH_TARGETS))'

demo: $(BASE)  ## run the demo: two kills with -9, nothing lost, nothing twice
	$(VENV)/bin/beadline demo

check: lint types  ## lint, types, unit and model tests (three at a time); under 2 minutes
	$(PYTEST) tests/unit tests/model

test: lint types  ## every test, with a seeded sample of the long fault runs (BEADLINE_SEED=n replays)
	$(PYTEST) --fit

test-long: lint types  ## every test and all of the long fault runs
	BEADLINE_LONG=1 $(PYTEST)

lint: $(DEV)  ## ruff: rules and format
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/ruff format --check $(CODE)

types: $(DEV)  ## mypy, strict
	$(VENV)/bin/mypy $(CODE)

format: $(DEV)  ## let ruff repair what it can
	$(VENV)/bin/ruff check --fix $(CODE)
	$(VENV)/bin/ruff format $(CODE)

bench: $(BENCH_TARGETS)  ## every benchmark; the last line of each is one JSON object

bench-%: $(DEV)
	$(VENV)/bin/python -m bench.$(subst -,_,$*)

mutants: $(DEV)  ## make kept mistakes, one at a time: the cheap tests must see each; one JSON object
	$(VENV)/bin/python -m tests.mutants

matrix: $(DEV)  ## every source into every sink, killed and compared; writes docs/matrix.md (SEED=n)
	$(VENV)/bin/python -m tests.harness.matrix $(if $(SEED),--seed $(SEED)) --write docs/matrix.md

docs: $(DEV)  ## build the documentation into build/docs
	$(VENV)/bin/mkdocs build --strict --quiet

clean:  ## remove what the other targets made, .venv included
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find src tests $(wildcard bench examples) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

# The development install holds the base install too, so it satisfies both stamps.
$(DEV): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	@touch $(BASE) $@
