# Each target sets up all it needs, in .venv. Needs python3 >= 3.11, make and git, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# rules and tests find snakemake and python here
export PATH := $(BIN):$(PATH)

.PHONY: help run test lint bench generated clean

help:
	@echo "make run      run the study of config/experiments.yaml on this machine and print its decision"
	@echo "make test     run all tests"
	@echo "make lint     check style, types and the workflow"
	@echo "make bench    measure speed and memory against plain PyTorch, torchvision and Snakemake"
	@echo "make generated  write what is generated: JSON Schemas, the table of keys, figure captions"
	@echo "make clean    remove the virtual environment; results stay"

run: $(VENV)/run.installed
	@touch $(VENV)/run.began
	@snakemake --profile profiles/local
	@# a run that made the report has printed the decision; one that had nothing to do has not
	@[ results/report.html -nt $(VENV)/run.began ] || python workflow/scripts/show_decisions.py results

test: $(VENV)/dev.installed
	pytest

lint: $(VENV)/dev.installed
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check workflow
	snakemake --lint

bench: $(VENV)/dev.installed
	python benchmarks/run.py

generated: $(VENV)/run.installed
	python workflow/scripts/write_generated.py

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Python {v.major}.{v.minor} is too old: use 3.11 or newer, as in `make run PYTHON=python3.12`.")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt .
	@touch $@

$(VENV)/dev.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt '.[dev]'
	@touch $@ $(VENV)/run.installed
