# Every target sets up what it needs: a fresh clone and `make test` is enough.

PYTHON ?=
TEST_JOBS ?= $(shell cores=$$(nproc); echo $$((cores < 8 ? cores + 1 : 8)))
SOAK ?= all
TESTS ?= src tests
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
SOAK_READY := $(VENV)/.soak-ready
DOCS_READY := $(VENV)/.docs-ready
JAVA := tools/with_java
PYTEST := $(JAVA) $(BIN)/python -m pytest -p tools.one_jvm -n $(TEST_JOBS) --doctest-modules
INSTALL := $(BIN)/python tools/install.py

export PYSPARK_PYTHON := $(abspath $(BIN)/python)
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup kernels check test test-cluster test-wheel soak demo bench docs pages wheel format clean

help:
	@echo 'make setup    make .venv from requirements.lock (again only when that changes); compile common kernels; find Java 17+'
	@echo 'make check    lint, formatting, types, layers, house rules'
	@echo 'make test     tests, docstring examples, code blocks of the docs; no Spark cluster'
	@echo 'make test-cluster  the tests that start a Spark standalone cluster on this machine'
	@echo 'make test-wheel    builds wheels, installs them for each Python on this machine, runs the first program'
	@echo 'make soak     the long suites: kills, crashes, interrupts, fuzzing (SOAK=sample: a part of each, as .ci/run does)'
	@echo 'make demo     the guided tour: examples/demo.py'
	@echo 'make bench    install the peers and list the benchmarks'
	@echo 'make docs     build the site of the documentation into site/; a broken link or a missing name fails it'
	@echo 'make pages    fill in what pages take from the code: the reference, the programs of the cookbook'
	@echo 'make wheel    dist/: a wheel for any Python, and one for this Python that brings its kernels'
	@echo 'make format   format and apply safe fixes'
	@echo 'make clean    remove .venv, caches and build output'
	@echo
	@echo 'SEED=7           another seed for what is drawn (make test has a fixed one; make soak draws one and prints it)'
	@echo 'PYTHON=...       the interpreter for .venv (3.11 or later; default: the first one found)'
	@echo 'TESTS=tests/...  only some tests'
	@echo 'TEST_JOBS=2      test processes (default: one more than there are cores, 8 at the most; 0: all in one)'
	@echo 'ARGS="-k name"   more arguments for pytest, the demo or the benchmarks'
	@echo 'JAVA_HOME=...    the Java for Spark (17 or later; default: the first one found)'

setup: $(READY)
	@$(BIN)/python -m riverrun kernels --common
	@$(JAVA)

# Compiled by as many processes as there are cores, before tests or programs start; nothing is left to do as a rule.
kernels: $(READY)
	@$(BIN)/python -m riverrun kernels

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src tools
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python tools/check_imports.py

test: export PYTHONHASHSEED := 0
test: kernels
	$(PYTEST) -m 'not cluster and not soak and not wheel' $(TESTS) $(ARGS)

test-cluster: export PYTHONHASHSEED := 0
test-cluster: kernels
	$(PYTEST) -m cluster tests/spark $(ARGS)

test-wheel: kernels
	$(BIN)/python -m pytest -m wheel tests/test_wheels.py $(ARGS)

soak: export SOAK := $(SOAK)
soak: kernels $(SOAK_READY)
	$(PYTEST) -m '$(if $(filter sample,$(SOAK)),soak or sampled,soak or sampled or drawn or hypothesis)' tests $(ARGS)

demo: kernels
	$(JAVA) $(BIN)/python -m examples.demo $(ARGS)

bench: $(BENCH_READY) kernels
	$(JAVA) $(BIN)/python -m bench $(ARGS)

docs: $(READY) $(DOCS_READY)
	$(BIN)/python tools/pages.py --check
	$(BIN)/zensical build --strict --clean
	$(BIN)/python tools/check_site.py site

pages: $(READY)
	$(BIN)/python tools/pages.py
wheel: kernels
	$(BIN)/python tools/wheels.py

format: $(READY)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf src/riverrun/state/kernels/compiled
	find . -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +

# Looks for an interpreter of 3.11 or later that can make environments, and leaves it in $$python.
# As root on a Debian without one, installs it; otherwise says what to install.
define find_python
find_python() { \
	for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
		"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
			2>/dev/null && return 0; \
	done; \
	return 1; \
}; \
if ! find_python && [ -z '$(PYTHON)' ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo 'no Python 3.11+ with venv found: apt-get install python3 python3-venv'; \
	start=$$(date +%s); \
	apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		python3 python3-venv >/dev/null && outcome='installed python3 python3-venv' || outcome='apt-get failed'; \
	echo "$$outcome, after $$(($$(date +%s) - start)) s"; \
fi; \
if ! find_python; then \
	echo 'Riverrun needs Python 3.11 or later with its venv module; none was found$(if $(PYTHON), at $(PYTHON)).' >&2; \
	echo 'Debian, Ubuntu:  sudo apt-get install python3 python3-venv' >&2; \
	echo 'elsewhere:       install Python 3.11+, then: make $(MAKECMDGOALS) PYTHON=/path/to/python3' >&2; \
	exit 1; \
fi
endef

$(VENV)/.locked: requirements.lock
	@$(JAVA)
	@$(find_python); \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV)
	@$(INSTALL) 'installing what Riverrun needs' --no-compile -r requirements.lock
	@touch $@

$(READY): $(VENV)/.locked pyproject.toml
	@$(INSTALL) 'installing Riverrun' --no-deps --no-build-isolation -e .
	@touch $@

$(BENCH_READY): $(READY) requirements-bench.lock
	@$(INSTALL) 'installing the peers' --no-compile -r requirements-bench.lock
	@touch $@

$(SOAK_READY): $(READY) requirements-soak.lock
	@$(INSTALL) 'installing what fuzzes' --no-compile --no-deps -r requirements-soak.lock
	@touch $@

$(DOCS_READY): $(READY) requirements-docs.lock
	@$(INSTALL) 'installing what builds the site' --no-compile --no-deps -r requirements-docs.lock
	@touch $@
