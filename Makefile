# `make` alone prints its targets. Everything runs in .venv, which `setup` fills and nothing else touches.

PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
STAMP    := $(VENV)/.set-up
URL      ?=
PROGRAMS ?= 1000
SECONDS  ?= 60
HOURS    ?= 1
LANES    ?= 2
SEED     ?=
SEEDS    ?=
ARGS     ?=

# Tests start hundreds of processes, and each would compile the library again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test docs docs-serve bench notebooks differential chaos soak mutations audit lock release-check sim check house format clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv and install the project into it (a second time costs nothing)
	@command -v java > /dev/null || echo "No Java: Spark's part is left out. To have it: sudo apt-get install openjdk-17-jre-headless"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "No venv module: sudo apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV), which takes a minute or two ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

demo: setup ## Load 336,776 flights by Spark, drain them by several processes, check each came once (URL=fdb: for a cluster)
	@$(BIN)/python -m examples.demo $(if $(URL),--url '$(URL)') $(ARGS)

# `-n auto` is two processes more than cores, or none if ARGS names files only: see tests/conftest.py.
test: setup ## Run the tests (ARGS='tests/cli -k clear' for some, FAST=1 in two minutes without slow ones and Spark, NIGHTLY=1 for all, ARGS='-n 0' one by one)
	$(if $(NIGHTLY),FDBQUEUE_NIGHTLY=1 HYPOTHESIS_PROFILE=nightly )$(if $(FAST),FDBQUEUE_FAST=1 )$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(if $(FAST),-m 'not slow and not spark') $(ARGS)

docs: setup ## Build the documentation site into build/site; a warning is an error
	$(BIN)/python -m docs.site

docs-serve: setup ## Build the documentation site and show it at http://127.0.0.1:8000
	$(BIN)/python -m docs.site --serve

bench: setup ## Measure, into build/benchmarks in over an hour (FULL=1: more; FDB_CLUSTER_FILE adds the cluster; ARGS=queue: one, printed)
	$(BIN)/python -m tests.benchmarks $(if $(FULL),--full) $(if $(ARGS),$(ARGS),--out build/benchmarks)

notebooks: setup ## Run the notebooks on memory: and keep their outputs (ARGS=01: only that one)
	$(BIN)/python -m tests.notebooks $(ARGS)

differential: setup ## Run random programs on memory: and on URL, which is cleared again and again, and compare every answer
	@test -n "$(URL)" || { echo "Name a database that holds nothing of worth: make differential URL=fdb:PATH PROGRAMS=5000" >&2; exit 2; }
	$(BIN)/python -m tests.conformance.differential memory: '$(URL)' --programs $(PROGRAMS) $(ARGS)

chaos: setup ## Kill, stop and fail what works on a queue for SECONDS, and check every promise (SEED=7, URL=fdb:PATH)
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) --url '$(or $(URL),file:)' $(if $(SEED),--seed '$(SEED)') $(ARGS)

sim: setup ## Chaos in one thread and virtual time: SEEDS rounds from SEED on, each the same again by its seed (ARGS='--kind sessions')
	$(BIN)/python -m tests.sim --seeds $(or $(SEEDS),100) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: setup ## The same for HOURS, in rounds of a minute of all kinds in turn, LANES side by side; idle workers are killed too (URL=server:)
	$(BIN)/python -m tests.chaos --hours $(HOURS) --round 60 --lanes $(LANES) --url '$(or $(URL),file:)' $(if $(SEED),--seed '$(SEED)') $(ARGS)

mutations: setup ## Take guards out of copies of the library, one by one, and see that chaos finds each (URL=fdb:PATH)
	$(BIN)/python -m tests.chaos.mutations --url '$(or $(URL),file:)' $(ARGS)

audit: setup $(STAMP)-audit ## Ask the advisory database about every installed package (needs the network)
	$(BIN)/python -m pip freeze --exclude-editable > $(VENV)/installed.txt
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement $(VENV)/installed.txt

$(STAMP)-audit:
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@touch $@

lock: ## Write requirements-dev.lock anew, with the newest versions (needs uv and the network)
	uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-annotate --no-header --no-emit-index-url \
	  --no-emit-find-links --extra dev --extra notebook --extra tasks pyproject.toml --output-file requirements-dev.lock

release-check: ## Build twice, look into the files, use the wheel in fresh environments (needs uv and the network; ARGS=--quick)
	$(BIN)/python -m tests.release $(ARGS)

check: setup ## Check format, lint, types and who imports whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

house: setup ## Measure the code and its documents: lines, files, imports, private names used from outside
	@$(BIN)/python -m tests.house

format: setup ## Format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove .venv, caches, builds and the demo's queue
	rm -rf $(VENV) .demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
