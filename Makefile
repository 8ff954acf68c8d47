# Needs a Python 3.11 or later and make, nothing else; whatever more is wanted goes into .venv.
#   make demo STORE=s3     make test PYTEST_ARGS="-k tiles"     make setup PYTHON=/opt/python3.12/bin/python3
SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
STORE ?= dir
JOBS ?= 2
PYTEST_ARGS ?=
LOCK_ARGS ?=
QUICK ?=
PIP = $(PY) -m pip --disable-pip-version-check --no-input
INSTALL = $(PIP) install --quiet --require-hashes --only-binary :all:
# Snakemake needs a small package of pure Python that is published as source only: built with the locked setuptools.
SOURCE = --no-binary connection-pool --no-build-isolation

# Another environment that happens to be active must not leak into this one.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONSTARTUP
export PYTHONNOUSERSITE := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: reproduce bench-growth help setup setup-workflow setup-dev demo test test-slow campaign check format lock bench bench-codec bench-link bench-real bench-scaling bench-slurm clean

help: ## show this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-17s %s\n", $$1, $$2}'

setup: $(VENV)/.run ## make .venv with everything that running needs, an MPI included

setup-workflow: $(VENV)/.workflow ## the same, and Snakemake with the executors that the profiles use

setup-dev: $(VENV)/.dev ## the same, and what tests and checks need

demo: $(VENV)/.run $(if $(filter s3,$(STORE)),$(VENV)/.s3) ## run the main job on a small model (STORE=dir, or s3 with a real server)
	$(PY) -m bench.demo --store $(STORE)

test: $(VENV)/.dev ## run the tests (PYTEST_ARGS=... for pytest, JOBS=2 processes)
	$(PY) -m pytest -n $(JOBS) --dist worksteal --durations 10 $(PYTEST_ARGS)

test-slow: $(VENV)/.dev ## run the tests, the long ones too
	$(PY) -m pytest -n $(JOBS) --dist worksteal --durations 20 --run-slow $(PYTEST_ARGS)

campaign: $(VENV)/.dev $(VENV)/.s3 ## kill, fail and cut off every act at every system call, attack every reader (QUICK=1: a minute)
	$(PY) -m tests.campaign $(if $(QUICK),--quick)

check: $(VENV)/.dev ## lint, formatting, types, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" snakefmt --check Snakefile workflow
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.dev ## format the code and mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" snakefmt Snakefile workflow

bench: $(VENV)/.run ## all benchmarks that need nothing more than running does (QUICK=1: shorter)
	$(PY) -m bench $(if $(QUICK),--quick)

bench-codec: $(VENV)/.run ## sizes and speeds beside memcpy and the reference formats (QUICK=1: under a minute)
	$(PY) -m bench.codec $(if $(QUICK),--quick)

bench-link: $(VENV)/.run $(VENV)/.s3 ## refits over links of a known rate beside the full transfer (root; QUICK=1: a minute; LINK_ARGS="--repeat 3")
	$(PY) -m bench.link $(if $(QUICK),--quick) $(LINK_ARGS)

bench-real: $(VENV)/.real ## fine-tune a real transformer for pairs that bench-codec then measures too (minutes; torch)
	$(PY) -m bench.real

bench-scaling: $(VENV)/.plan ## a refit's stream simulated for up to 1,024 ranks and 10 sites (QUICK=1: under a minute)
	$(PY) -m bench.scaling $(if $(QUICK),--quick)

bench-slurm: $(VENV)/.run ## what a version costs in the scheduler, on Slurm clusters started here (root; minutes)
	$(PY) -m bench.slurm

bench-growth: $(VENV)/.run ## time and memory against model size, ranks, change rate and sites (QUICK=1: a minute)
	$(PY) -m bench.growth $(if $(QUICK),--quick)

reproduce: bench-codec bench-link ## the paper's figures beside ours: measure, project, and write them into docs/benchmarks.md (root; half an hour)
	$(PY) -m bench.reproduce

lock: $(VENV)/.dev ## write requirements/*.lock anew (LOCK_ARGS=--upgrade for newer versions)
	$(PIP) install --quiet uv
	requirements/compile.sh $(VENV)/bin/uv $(LOCK_ARGS)

clean: ## remove .venv and everything else that was made here
	rm -rf $(VENV) build demo-out configs/demo .snakemake bench/out *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find dcr_mpi bench tests -name __pycache__ -prune -exec rm -rf {} +

# The stamps say which locks .venv was made from; a second call does nothing.
$(PY):
	@sh requirements/venv.sh $(VENV) $(PYTHON)

$(VENV)/.run: requirements/run.lock pyproject.toml | $(PY)
	$(INSTALL) -r requirements/run.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.workflow: requirements/workflow.lock $(VENV)/.run
	$(INSTALL) $(SOURCE) -r requirements/workflow.lock
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.run
	$(INSTALL) $(SOURCE) -r requirements/dev.lock
	@touch $@

$(VENV)/.s3: requirements/s3.lock $(VENV)/.run
	$(INSTALL) -r requirements/s3.lock
	@touch $@

$(VENV)/.plan: requirements/plan.lock $(VENV)/.run
	$(INSTALL) -r requirements/plan.lock
	@touch $@

$(VENV)/.real: requirements/real.lock $(VENV)/.run
	$(PIP) install --quiet -r requirements/real.lock
	@touch $@
