# Cloudblox. `make` alone lists what there is.
VENV := .venv
PYTHON := $(VENV)/bin/python
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
FILES ?=
ARGS ?=
# Tests run in this many processes, each with its own servers; the files of one are not split.
JOBS ?= 3
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# A folder appears here only when it exists, so that a part of the tree can be tested too.
FAST := $(wildcard tests/unit tests/conformance)
FULL := $(FAST) $(wildcard tests/faults tests/integration tests/acceptance tests/chart)

.DEFAULT_GOAL := help
.PHONY: help demo up test test-fast test-faults check format bench dist lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A stamp says which requirements are in the environment; what dev.txt holds includes runtime.txt.
$(RUNTIME): requirements/runtime.txt
	@scripts/venv $(VENV) $<
	@touch $@

$(DEV): requirements/dev.txt requirements/runtime.txt
	@scripts/venv $(VENV) $<
	@touch $(RUNTIME) $@

demo: $(RUNTIME) ## Start the embedded stack and show it working, no servers, no root (FILES="a.bin b.pdf" are put as well)
	@$(PYTHON) -m services.cli demo $(FILES)

up: $(RUNTIME) ## Run the embedded stack in this terminal until Ctrl-C
	@$(PYTHON) -m services.cli up $(ARGS)

test: $(DEV) ## Everything, on real MariaDB, Redis and Ceph RGW, which apt installs when missing (root)
	@scripts/servers
	@$(PYTHON) -m pytest $(FULL) -m "not long" $(PARALLEL) $(ARGS)

test-fast: $(DEV) ## Unit and conformance tests on SQLite and a Redis from a wheel: no root, a minute
	@$(PYTHON) -m pytest $(FAST) --no-root -m "not long" $(PARALLEL) $(ARGS)

test-faults: $(DEV) ## The long fault runs: kills, pauses and flushes under load, bounded in time (root)
	@scripts/servers
	@$(PYTHON) -m pytest tests/faults $(ARGS)

check: $(DEV) ## Style, types, floors and the rules of the tree
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) -m pytest -q tests/unit/test_repository.py

format: $(DEV) ## Rewrite the files in the project's style
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

bench: $(DEV) ## Measure speed against Dramatiq, Celery and bare code on this machine (root)
	@scripts/servers
	@$(PYTHON) -m bench $(ARGS)

dist: $(DEV) ## Build the outbox alone as a wheel in dist/ (still imported as shared.outbox) and try it in an empty environment
	@scripts/dist $(PYTHON) dist

lock: $(DEV) ## Compile requirements/*.in into *.txt with hashes (ARGS=--upgrade for newer releases)
	$(VENV)/bin/uv pip compile -q --generate-hashes --python-version 3.11 $(ARGS) -o requirements/runtime.txt requirements/runtime.in
	$(VENV)/bin/uv pip compile -q --generate-hashes --python-version 3.11 $(ARGS) -c requirements/runtime.txt -o requirements/dev.txt requirements/dev.in

clean: ## Remove everything that make has made
	rm -rf $(VENV) build dist .blox .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
