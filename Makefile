# Each target but gpu sets up all it needs, in .venv. Needs python3 >= 3.11, make and git, nothing else; as root on
# Debian or Ubuntu, test also installs Slurm and Chromium from the system's packages, and slurm-lab Slurm.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
SLURM_PACKAGES := slurmctld slurmd slurmdbd slurm-client slurm-wlm-mysql-plugin munge \
  mariadb-server-core mariadb-client-core iproute2
# tests on a cluster, of ranks and of studies wait for much of their time: streams side by side
STREAMS := --numprocesses 4 --no-loadscope-reorder
# the oldest Snakemake that pyproject.toml allows, for the tests of what Scalewise uses of its internals
OLDEST_SNAKEMAKE := $(shell sed -n 's/.*"snakemake>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OLDEST := $(VENV)/snakemake-$(OLDEST_SNAKEMAKE)
# rules and tests find snakemake and python here
export PATH := $(BIN):$(PATH)

# one dry run and one tiny study, for `make check`
ONE_STUDY := tests/workflow/test_dry_run.py::test_the_shipped_study_shows_its_plan_on_a_terminal_and_starts_nothing \
  tests/workflow/test_study.py::test_every_promised_file_is_there

.PHONY: help setup run check test reliability nightly gpu lint bench generated golden slurm-packages chromium slurm-lab clean

help:
	@echo "make setup    install what a study needs into .venv, and nothing else"
	@echo "make run      run the study of config/experiments.yaml on this machine and print its decision"
	@echo "make check    what to run before a commit, 2 minutes: lint, the unit tests that are not marked slow,"
	@echo "              one dry run and one tiny study"
	@echo "make test     run all tests, those marked slow, on a Slurm cluster and in a browser too"
	@echo "make reliability  provoke every fault and give every bad input, thoroughly; writes docs/reliability.md"
	@echo "make nightly  hours: other random configurations each time, and simulated studies with a known answer"
	@echo "make lint     check style, types and the workflow"
	@echo "make slurm-lab  start a real Slurm cluster of four nodes on this machine (root on Debian or Ubuntu)"
	@echo "make gpu      what only a GPU can show: tests and benchmark in under 14 minutes; writes docs/gpu.md"
	@echo "make bench    measure speed against plain PyTorch, torchvision and Snakemake; writes docs/speed.md"
	@echo "make generated  write what is generated: JSON Schemas, the table of keys, figure captions"
	@echo "make golden   write the texts that tests compare word for word again, and print what differs"
	@echo "make clean    remove the virtual environment; results stay"

setup: $(VENV)/run.installed

run: $(VENV)/run.installed
	@touch $(VENV)/run.began
	@snakemake --profile profiles/local
	@# a run that made the report has printed the decision; one that had nothing to do has not
	@[ results/report.html -nt $(VENV)/run.began ] || python workflow/scripts/cli.py status

check: lint
	pytest --numprocesses 2 --no-loadscope-reorder -m "not slow" $(ONE_STUDY) tests/unit

test: $(VENV)/dev.installed $(OLDEST)/installed slurm-packages chromium
	SCALEWISE_OLDEST_SNAKEMAKE=$(CURDIR)/$(OLDEST)/bin/python pytest $(STREAMS)

reliability: $(VENV)/dev.installed slurm-packages
	SCALEWISE_THOROUGH=1 SCALEWISE_REQUIRE_SLURM=1 \
	  pytest -m "fault or refuses" $(STREAMS) --timeout 7200 --reliability=docs/reliability.md

nightly: $(VENV)/dev.installed slurm-packages chromium
	SCALEWISE_THOROUGH=1 pytest $(STREAMS) --timeout 7200 tests/unit/plan/test_fuzzed_configs.py
	python -m tests.truth

# a machine with a GPU may have no network: nothing is installed, and where there is no .venv its own python is taken
gpu:
	@$(PYTHON) -m benchmarks.on_gpu --write

golden: $(VENV)/dev.installed
	SCALEWISE_GOLDEN=1 pytest -q $$(grep -rl --include='test_*.py' '^from tests.golden import' tests)

slurm-lab: $(VENV)/dev.installed slurm-packages
	python tests/slurm/lab.py up

# the tests say what is missing and skip where these two cannot install it
slurm-packages:
	@for program in slurmctld slurmd slurmdbd munged mariadbd; do command -v $$program >/dev/null || missing=1; done; \
	[ -z "$$missing" ] || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0; \
	  echo "installing $(SLURM_PACKAGES)"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends $(SLURM_PACKAGES) >/dev/null || \
	  echo "not installed: the tests on a Slurm cluster will say what is missing"; }

chromium:
	@for program in chromium chromium-browser google-chrome; do command -v $$program >/dev/null && exit 0; done; \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0; \
	echo "installing chromium"; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends chromium >/dev/null || \
	echo "not installed: the tests in a browser will say what is missing"

lint: $(VENV)/dev.installed
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check workflow
	snakemake --lint

bench: $(VENV)/dev.installed chromium
	python benchmarks/run.py --write

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

$(OLDEST)/installed: | $(VENV)/bin/python
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check snakemake==$(OLDEST_SNAKEMAKE).* snakemake-logger-plugin-rich==0.5.*
	@touch $@
