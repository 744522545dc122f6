# Rightslice. `make` or `make help` lists the targets.
#
# The first call makes .venv from the locks under requirements/; later calls start at once, until a lock or
# pyproject.toml changes. Needs Python 3.11 or newer with venv, and make. Packages come from whatever index pip
# is set up for.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Only wheels, only the versions and hashes of the lock: an install runs no setup code of a stranger.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := $(INSTALL) --require-hashes --only-binary :all:
# The package itself: the checkout on the path, and its commands in $(BIN). hatchling comes from the lock.
ITSELF := $(INSTALL) --no-deps --no-index --no-build-isolation --editable .

# These rooms decide; their lines and branches are held at 95 %.
CORE := model documents placement policy engine report manifests
COVERAGE := $(CORE:%=--cov=webhook/%) --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=95

.DEFAULT_GOAL := help
.PHONY: help run serve test test-fast test-cluster plane fuzz lint format manifests bench bench-cluster bench-placement bench-rightsizing bench-usage lock clean
.DELETE_ON_ERROR:

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## Watch it work: the real server judges and shapes the example pods
	@$(BIN)/rightslice demo

serve: $(VENV)/.run ## Keep that server up on https://127.0.0.1:8443, with a certificate of its own
	@$(BIN)/rightslice serve webhook --policies policies --cluster demo --listen 127.0.0.1:8443 --self-signed

test: lint plane ## Lint, then every test, with the coverage of the core rooms
	$(BIN)/python -m pytest $(COVERAGE)

test-fast: lint ## The same without what needs a real control plane
	$(BIN)/python -m pytest -m "not cluster" $(COVERAGE)

test-cluster: plane ## Only what needs one (KUBERNETES_VERSION=1.34.4: of another version)
	$(BIN)/python -m pytest -m cluster

# Before pytest, so that one sees what is being built the first time.
plane: $(VENV)/.dev ## Build the control plane that tests run on: minutes once, then it is kept
	@$(BIN)/python -m tests.controlplane.build

# How much, and from which seed; a failure names its own. For a million: 20,000 pods without our webhook, 20,000 with it.
FUZZ ?= 1000000
SEED ?= $(shell date +%s)

fuzz: plane ## A million reviews, a million quantities and 40,000 pods (FUZZ=10000000 for longer, SEED=… to repeat)
	RIGHTSLICE_FUZZ=$(FUZZ) RIGHTSLICE_FUZZ_SEED=$(SEED) RIGHTSLICE_RACE=20x2000 $(BIN)/python -m pytest -s \
	  tests/server/test_fuzz.py tests/controlplane/test_quantities.py tests/cluster/test_limits_exactly.py \
	  tests/cluster/test_claims.py tests/cluster/no_harm/test_safety.py tests/cluster/no_harm/test_race.py

lint: $(VENV)/.dev ## Style, types, and which room may import which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Put style right where a tool can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

manifests: $(VENV)/.dev ## Write the manifests that are made: CRDs, hooks, install.yaml
	$(BIN)/python -m tests.manifests

bench: $(VENV)/.dev ## Measure it on this machine
	$(BIN)/python -m benchmarks

# Rounds and creates of the race for the last GPUs of a quota: two hours on two cores.
RACE ?= 100x10000

bench-cluster: plane ## Measure creates on a real control plane, with the webhook and without; then RACE for a quota
	@$(BIN)/python -m benchmarks.cluster
	RIGHTSLICE_RACE=$(RACE) $(BIN)/python -m pytest -s tests/cluster/no_harm/test_race.py

# The real traces are published (benchmarks/openb.py says where); TRACES names a folder of them.
TRACES ?= $(wildcard ../shared/traces/openb)

bench-placement: $(VENV)/.dev ## How full clusters get by placement rule, on the traces in TRACES; what the extender costs
	$(BIN)/python -m benchmarks.placement $(TRACES:%=--traces %)
	$(BIN)/python -m benchmarks.extender

# The day of GPU memory that limits are judged on is published too (benchmarks/gentd26.py).
TRACE ?= $(wildcard ../shared/traces/gentd26)

bench-rightsizing: $(VENV)/.dev ## How often GPU memory limits are overrun, by rule, on the trace in TRACE; what use costs
	$(BIN)/python -m benchmarks.rightsizing $(TRACE:%=--trace %)

bench-usage: plane ## What it costs to learn from a real Prometheus: 20,000 containers
	$(BIN)/python -m benchmarks.usage

# One resolution for every Python and platform; what is tested is what ships, so the others follow dev.txt.
# Releases younger than a week are left alone: most bad ones are found and pulled within days.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --custom-compile-command 'make lock' --exclude-newer '1 week'

lock: $(VENV)/.dev ## Write the locks anew from pyproject.toml (UPGRADE=--upgrade: newest versions)
	$(COMPILE) $(UPGRADE) pyproject.toml --all-extras --group dev --output-file requirements/dev.txt
	$(COMPILE) --constraint requirements/dev.txt pyproject.toml --output-file requirements/run.txt
	$(COMPILE) --constraint requirements/dev.txt pyproject.toml --extra agent --output-file requirements/agent.txt
	$(COMPILE) --constraint requirements/dev.txt --group build --output-file requirements/build.txt

clean: ## Remove what make and the tools made
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find webhook tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

$(VENV)/.run: $(VENV)/.made requirements/run.txt requirements/build.txt pyproject.toml
	@echo "Installing what rightslice needs into $(VENV)" >&2
	@$(LOCKED) --requirement requirements/run.txt --requirement requirements/build.txt
	@$(ITSELF)
	@touch $@

$(VENV)/.dev: $(VENV)/.made requirements/dev.txt pyproject.toml
	@echo "Installing what its tests need into $(VENV)" >&2
	@$(LOCKED) --requirement requirements/dev.txt
	@$(ITSELF)
	@touch $(VENV)/.run $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "rightslice needs Python 3.11 or newer, found: $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make PYTHON=python3.13" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@touch $@
