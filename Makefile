# Everything happens in a virtual environment of the project's own. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install test lint soak faults compare report readme results speed clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# pip chooses torch and torchvision together; installed again only when the requirements change
$(STAMP): setup.cfg pyproject.toml
	@echo "installing into $(VENV): a few minutes the first time, nothing after that"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

install: $(STAMP)  ## make .venv and install the package with what its development needs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

test: lint  ## install, lint, type-check and test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

soak: $(STAMP)  ## all tests, the random ones many times over
	REWC_SOAK=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

faults: $(STAMP)  ## all tests, and docs/faults.md, the table of what they did
	rm -rf runs/faults
	REWC_FAULT_REPORT=$(CURDIR)/runs/faults OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
	$(BIN)/python -m benchmarks.faults runs/faults docs/faults.md

compare: $(STAMP)  ## install, then compare R-EWC with EWC, LwF and others on scikit-learn's digits
	$(BIN)/python -m benchmarks.compare

RESULTS ?= runs/compare/results
report: $(STAMP)  ## tables, figures and a page from the result files in RESULTS (default: those of compare)
	$(BIN)/python -m benchmarks.report $(RESULTS)

readme: $(STAMP)  ## the README's table and figure, from the files in benchmarks/results
	$(BIN)/python -m benchmarks.readme

results: $(STAMP)  ## benchmarks/RESULTS.md and its figures, from the files in benchmarks/results
	$(BIN)/python -m benchmarks.findings

speed: $(STAMP)  ## benchmarks/SPEED.md: measure what is not measured yet (one to two hours, on an idle machine)
	$(BIN)/python -W ignore -c 'from benchmarks.speed.rivals import RIVALS, available; exit(available() != list(RIVALS))' \
		|| $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[speed]'  # other libraries, to time beside this one
	$(BIN)/python -m benchmarks.speed

clean:  ## remove the virtual environment and everything generated
	rm -rf $(VENV) build dist *.egg-info runs
