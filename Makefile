# sgplan: `make` alone prints this help.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
PYTHON ?= python3
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
LAID_OUT := .build/package

.PHONY: help venv demo test test-all check format-check lint types imports fix golden bench lock clean

help:  ## print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: .venv/installed  ## make .venv with everything in it (called by the others)

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sgplan needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	touch $@

demo: venv  ## train the digits net on 2 CPU ranks under its plan
	OMP_NUM_THREADS=1 $(BIN)/sgplan apply plans/digits/digits.sgplan -- \
		$(BIN)/torchrun --standalone --nproc-per-node 2 plans/digits/train.py

test: venv  ## the tests that CI runs
	$(PYTEST) -m 'not slow and not gpu'

test-all: venv  ## the whole matrix (about half an hour)
	$(PYTEST) -m 'not gpu'

check: format-check lint types imports  ## format, lint, types, import contracts, fast tests
	$(PYTEST) -q -m 'not gloo and not slow and not gpu'

format-check: venv
	$(BIN)/ruff format --check .

lint: venv
	$(BIN)/ruff check .

# The folders are the packages sgplan.grammar, sgplan.planner, …: type checker and import linter follow
# files, not the installed mapping, so both work on a copy laid out as the package.
$(LAID_OUT): venv FORCE
	@rm -rf $@ && mkdir -p $@
	@cp -r sgplan $@/sgplan
	@cp -r grammar planner interpreter tui $@/sgplan/
	@cp -r tests bench pyproject.toml $@/

types: $(LAID_OUT)
	cd $(LAID_OUT) && $(CURDIR)/$(BIN)/pyright --pythonpath $(CURDIR)/$(BIN)/python

imports: $(LAID_OUT)
	cd $(LAID_OUT) && $(CURDIR)/$(BIN)/lint-imports

FORCE:

fix: venv  ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: venv  ## rewrite golden files and snapshots; read the diff
	$(PYTEST) -q -m 'not slow and not gpu' --update-golden

bench: venv  ## ratios against the same script by hand (over an hour, quiet machine)
	$(BIN)/python bench/harness.py

lock: venv  ## pin what is installed now for development and CI
	{ grep '^#' constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > .build/lock && mv .build/lock constraints.txt

clean:  ## remove the environment and everything that is built
	rm -rf .venv .build
