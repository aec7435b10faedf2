# The tasks of the project. Each of them sets up .venv first and again whenever a pin changes.

# The first Python that is new enough and can make virtual environments.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
SOAK_SECONDS ?= 600

BIN := .venv/bin
READY := .venv/.ready

# Else every process compiles all its modules, each time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup run test test-outside test-all test-quick coverage check check-format check-lint check-types check-api bench bench-page soak builds docs site vendor screenshots format clean

help: ## list the tasks
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 16

setup: $(READY) ## make .venv

$(READY): pyproject.toml $(wildcard requirements/*.txt)
	@test -x $(BIN)/python || test -n "$(PYTHON)" || \
		{ echo "Warren needs Python 3.11 or newer with its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/build.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

run: $(READY) ## a demonstration: many sessions at once over a WebSocket
	$(BIN)/python examples/demo.py

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: $(READY) ## the tests that stay in one process
	$(PYTEST) -m "not soak and not outside"

test-outside: $(READY) ## the tests with processes, PostgreSQL, a browser or proxies
	$(PYTEST) -m "not soak and outside"

test-all: $(READY) ## both in one run, which collects them once: the whole test suite, but for the long tests
	$(PYTEST) -m "not soak"

test-quick: $(READY) ## the same as test, of one folder: LAYER=actors, LAYER=transport/rpc
	@test -d "tests/$(LAYER)" && test -n "$(LAYER)" || { echo "make test-quick LAYER=actors: a folder below tests/" >&2; exit 1; }
	$(PYTEST) -m "not soak and not outside" tests/$(LAYER)

coverage: $(READY) ## the whole test suite, and the lines it does not reach
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage report --show-missing --skip-covered

check: check-format check-lint check-types check-api test-all ## everything that has to pass before a change is merged

check-format: $(READY)
	$(BIN)/ruff format --check .

check-lint: $(READY)
	$(BIN)/ruff check .

check-types: $(READY)
	$(BIN)/mypy

# What users of the library see: every public name has to be fully typed, and programs with them pass in strict mode. Pyright asks the first python on the path where things are.
check-api: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes warren --ignoreexternal
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright tests/domain/test_typing.py examples

bench: $(READY) ## the benchmarks; each prints JSON
	$(BIN)/python -m benchmarks

bench-page: $(READY) ## the same, and docs/performance.md made of them
	$(BIN)/python -m benchmarks --page

soak: $(READY) ## the long tests, SOAK_SECONDS in all
	WARREN_SOAK_TOTAL=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak -p tests.support.soaking --hypothesis-profile=soak -o faulthandler_timeout=0

builds: $(READY) ## the contract of each capability build, from the wheel, in an environment of its own
	$(BIN)/python tests/builds/run.py

docs: $(READY) ## make the pages under docs/ that come from the code
	$(BIN)/python -m tests.docs.protocol_page > docs/protocol.md
	$(BIN)/python -m tests.docs.settings_page > docs/settings.md
	$(BIN)/python -m tests.docs.diagram docs/architecture.md
	$(BIN)/python -m tests.docs.rooms docs/architecture.md
	$(BIN)/python -m tests.docs.bounds_page docs/security.md
	$(BIN)/python -m tests.docs.repairs_page docs/models.md

vendor: ## the libraries of the console, at the versions that are pinned (needs npm)
	cd transport/console/vendoring && npm ci --no-audit --no-fund && node vendor.mjs && rm -rf node_modules

screenshots: $(READY) ## pictures of the console in build/screenshots, and of the command line in docs/images (needs chromium)
	$(BIN)/python -m tests.transport.console.screenshots
	$(BIN)/python -m tests.docs.cli_pictures

site: $(READY) ## the pages of docs/ as a site, in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/site/mkdocs.yml

format: $(READY) ## sort the imports and format the code
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

clean: ## remove everything that was built
	rm -rf .venv build dist src/*.egg-info .coverage .coverage.* htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find actors benchmarks examples mailbox src storage tests transport -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
