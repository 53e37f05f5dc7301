# `make serve` and `make test` do all their own set-up. It needs a Python with pip, any version from 3.12 on:
# .ci/python.sh looks for one; PYTHON=/path/to/python3.12 names one.
BIN := .venv/bin
READY := .venv/.ready
LOCK := $(BIN)/uv pip compile --system-certs --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url \
	--no-header
SUITE := tests/conformance
CONSOLE := tests/console
OLDER := tests/older_sdk
READERS := tests/registry_clients
CLIENTS := tests/openai_clients
MODELS := tests/model_server
SIGN_IN := tests/authorization_server
RELEASE := tests/release_0_1_0
TASKS := tests/task_clients
PROGRAMS := $(SUITE)/node_modules/.package-lock.json $(CONSOLE)/node_modules/.package-lock.json $(SIGN_IN)/node_modules/.package-lock.json $(OLDER)/.venv/.ready $(READERS)/.venv/.ready $(CLIENTS)/.venv/.ready $(CLIENTS)/node_modules/.package-lock.json $(MODELS)/.venv/.ready $(RELEASE)/.venv/.ready $(TASKS)/node_modules/.package-lock.json $(TASKS)/.venv/.ready
SUPPLY := .ci/supply_chain
BENCHES := benchmarks/.venv/.ready benchmarks/agno/.venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-all quick shaken costs branches drift soak bench bench-soak bench-profile lint types floors check lock docs release sbom audit programs vendor screenshots conformance clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv from the lock (every target does this first, when the lock or pyproject.toml changed)

$(READY): requirements-dev.lock pyproject.toml .ci/setup.sh .ci/python.sh
	@sh .ci/setup.sh
	@touch $@

serve: $(READY) ## run the gateway with the example agents (on another port: make serve FLAGS='--port 24300')
	@echo 'Starting the gateway with the example agents; Ctrl-C stops it' >&2
	@$(BIN)/pallas-gateway serve --config agents.example.yaml $(FLAGS)

# Where the environment tells Python to keep no compiled modules, each of the many processes that tests start compiled
# everything it imports: 3 s more.
test test-all quick shaken costs branches drift soak conformance: export PYTHONDONTWRITEBYTECODE =

# A file of tests stays in one process, which starts the gateways, browsers and databases of the file once. A third process
# takes as long for `make test`, which keeps two cores busy: what it gains in waits it loses in CPU.
SHARED_OUT := -q --dist loadfile --no-loadscope-reorder
# Folders whose tests start each program as a user does; elsewhere programs are forked, for half of the CPU.
REAL_PROGRAMS := PALLAS_REAL_PROGRAMS=cli,example

test: $(READY) ## run each behaviour's test once; needs no key, no network and no other program
	@$(BIN)/pytest $(SHARED_OUT) -n 2 --tier test $(FLAGS)

test-all: $(READY) ## run what `make test` leaves out: versions, providers, PostgreSQL, the console, deployment; after `make programs`
	@$(REAL_PROGRAMS) $(BIN)/pytest $(SHARED_OUT) -n 3 --tier all $(FLAGS)

quick: $(READY) ## run the tests of what differs from the branch main, two minutes at most (another commit: make quick FLAGS='--base COMMIT')
	@$(BIN)/python -m tests.changed quick $(FLAGS)

shaken: $(READY) ## run the changed files of tests ten times in random order, while two processes use the cores
	@$(BIN)/python -m tests.changed shaken $(FLAGS)

costs: $(READY) ## measure the tests and write tests/figures/costs.json, which orders them
	@PALLAS_COSTS=1 $(BIN)/pytest $(SHARED_OUT) -n 2 --tier test $(FLAGS)
	@PALLAS_COSTS=1 $(REAL_PROGRAMS) $(BIN)/pytest $(SHARED_OUT) -n 3 --tier all $(FLAGS)

# Until Python 3.14, `sys.monitoring` counts lines only.
branches: export COVERAGE_CORE = ctrace
branches: $(READY) ## measure branch coverage of each file; python -m tests.branches OLD.json NEW.json names those that fell
	@$(BIN)/pytest -n 3 --dist worksteal -q --cov --cov-branch --cov-report=json:.venv/branches.json $(FLAGS)

drift: $(READY) ## which names and tests fail with the newest versions (another: make drift FLAGS='--fast-agent 0.10.47')
	@$(BIN)/python -m tests.drift $(FLAGS)

soak: $(READY) ## run the long load tests
	@$(BIN)/pytest -m soak --timeout 1800 -o faulthandler_timeout=1790

bench: $(READY) $(BENCHES) ## measure beside the alternatives, write docs/performance.md (rough, in minutes: make bench FLAGS=--short)
	@$(BIN)/python -m benchmarks $(FLAGS)

bench-soak: $(READY) $(BENCHES) ## 20,000 calls, 30 % of whose clients hang up: what is left of them
	@$(BIN)/python -m benchmarks soak $(FLAGS)

bench-profile: $(READY) $(BENCHES) ## flame graphs: where a call's time goes
	@$(BIN)/python -m benchmarks profile $(FLAGS)

%/.venv/.ready: %/requirements.lock $(READY)
	@echo 'Setting up $(@D)'
	@$(BIN)/python -m venv --clear $(@D)
	@$(BIN)/uv pip install --system-certs --quiet --python $(@D)/bin/python --require-hashes --no-deps -r $< || \
		$(@D)/bin/python -m pip install -qq --require-hashes --no-deps -r $<
	@touch $@

lint: $(READY) ## ruff: rules and format
	@$(BIN)/ruff check --no-cache
	@$(BIN)/ruff format --check --no-cache

types: $(READY) ## mypy, strict
	@$(BIN)/mypy

floors: $(READY) ## import-linter: imports point down
	@$(BIN)/lint-imports --no-logo

check: lint types floors test ## lint, types, imports and `make test`; CI adds `make test-all`

lock: $(READY) ## write the lock files anew from pyproject.toml (newest versions: make lock FLAGS=--upgrade)
	@$(LOCK) --all-extras pyproject.toml $(FLAGS) --output-file requirements.lock
	@$(LOCK) --all-extras pyproject.toml $(FLAGS) --group dev --constraint requirements.lock --output-file requirements-dev.lock
	@$(LOCK) benchmarks/requirements.in $(FLAGS) --output-file benchmarks/requirements.lock
	@$(LOCK) benchmarks/agno/requirements.in $(FLAGS) --output-file benchmarks/agno/requirements.lock
	@$(LOCK) $(OLDER)/requirements.in $(FLAGS) --output-file $(OLDER)/requirements.lock
	@$(LOCK) $(READERS)/requirements.in $(FLAGS) --output-file $(READERS)/requirements.lock
	@$(LOCK) $(CLIENTS)/requirements.in $(FLAGS) --output-file $(CLIENTS)/requirements.lock
	@$(LOCK) $(MODELS)/requirements.in $(FLAGS) --output-file $(MODELS)/requirements.lock
	@$(LOCK) $(TASKS)/requirements.in $(FLAGS) --output-file $(TASKS)/requirements.lock
	@$(LOCK) $(SUPPLY)/requirements.in $(FLAGS) --output-file $(SUPPLY)/requirements.lock

docs: $(READY) ## write the generated pages, which tests/pages.py lists: settings, metrics, log events, reasons, routes, providers, faults of libraries
	@$(BIN)/python -m tests.pages

release: $(SUPPLY)/.venv/.ready ## build sdist and wheel into dist/, twice and the same; install the wheel and call an agent
	@sh $(SUPPLY)/release.sh

sbom: $(SUPPLY)/.venv/.ready ## write dist/sbom.json, the locked dependencies for scanners (CycloneDX); it names package hosts, so do not commit it
	@mkdir -p dist
	@$(SUPPLY)/.venv/bin/cyclonedx-py requirements --output-reproducible --output-format JSON --output-file dist/sbom.json requirements.lock

# `--strict`: a package that could not be looked up is no package without advisories.
audit: $(SUPPLY)/.venv/.ready ## advisories about the locked dependencies (without a network: make audit ADVISORIES=FILE, an export of osv.dev)
ifdef ADVISORIES
	@$(SUPPLY)/.venv/bin/python $(SUPPLY)/advisories.py requirements.lock '$(ADVISORIES)'
else
	@$(SUPPLY)/.venv/bin/pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock
endif

programs: $(PROGRAMS) ## install the foreign programs some tests need: Node 22, the MCP conformance suite, the TypeScript SDK, axe, an OpenID provider, release 1 of the Python SDK, two clients of the MCP registry, programs that call models of OpenAI, llama.cpp's server, Claude Code, FastMCP's client of tasks, release 0.1.0

$(RELEASE)/.venv/.ready: $(RELEASE)/setup.sh | $(READY)
	@echo 'Setting up $(@D)'
	@sh $<
	@touch $@

%/node_modules/.package-lock.json: %/package-lock.json
	@echo 'Installing the programs of $*'
	@npm ci --prefix $* --silent
	@touch $@

vendor: $(READY) $(PROGRAMS) ## copy the console's libraries from the packages in tests/console/package.json
	@$(BIN)/python -m tests.console.vendor

screenshots: $(READY) ## take the pictures of the console for the documentation
	@$(BIN)/python -m tests.console.screenshots

conformance: $(READY) $(PROGRAMS) ## run the MCP conformance suite against the gateway
	@PALLAS_CI=1 $(BIN)/pytest $(SUITE)

clean: ## remove .venv, caches and installed programs
	@rm -rf .venv dist $(SUPPLY)/.venv $(dir $(BENCHES)) $(SUITE)/node_modules $(CONSOLE)/node_modules $(SIGN_IN)/node_modules $(OLDER)/.venv $(READERS)/.venv $(CLIENTS)/.venv $(CLIENTS)/node_modules $(MODELS)/.venv $(RELEASE)/.venv $(TASKS)/node_modules $(TASKS)/.venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov
	@find pallas_gateway tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
