# Everything that a newcomer, a developer and the CI run. A fresh machine needs Python 3.10 or newer, make, and PyPI.

PYTHON ?= python3
VENV   ?= .venv
PYTEST_ARGS ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# `make failover`
DURATION ?= 120
BROKER   ?= redis

.DEFAULT_GOAL := help
.PHONY: help demo test fast lint bench failover torture servers clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## See a failover: three beats, one leads, it is killed, the next one goes on
	$(BIN)/python -m example_project.demo

# The tests of one file share its workers and servers, so a file stays together.
test: lint ## Check style, types and imports, then run every test whose server is installed
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

fast: $(STAMP) ## Run the tests that need no server, no process and little time
	$(BIN)/python -m pytest -n 2 -m "not redis and not rabbitmq and not postgresql and not process and not slow" $(PYTEST_ARGS)

lint: $(STAMP) ## Check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## Measure dispatch, failover and idle cost, side by side with other schedulers
	$(BIN)/python -m benchmarks

failover: $(STAMP) ## Kill, freeze and cut off beats for DURATION seconds (120), with BROKER redis or rabbitmq
	$(BIN)/python -m tests.failover --duration $(DURATION) --broker $(BROKER)

torture: $(STAMP) ## Storm five beats with every fault for DURATION seconds (120), with BROKER redis or rabbitmq
	$(BIN)/python -m tests.torture --duration $(DURATION) --broker $(BROKER)

# Installed again only when pyproject.toml changes. An interrupted installation leaves no stamp.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). Name a Python 3.10 or newer: make $(MAKECMDGOALS) PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "$(PYTHON) is older than Python 3.10. Name a newer one: make $(MAKECMDGOALS) PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[demo,prometheus,json]' --group dev
	@touch $@

# The tests start these servers themselves, on free ports; as services of the system they would only be in the way.
servers: ## Install RabbitMQ, PostgreSQL and a Redis with TLS from Debian, for the tests that need them (as root)
	@command -v apt-get >/dev/null || { \
	    echo "There is no apt-get here. Install rabbitmq-server, postgresql and redis-server (or valkey-server) by other means." >&2; exit 1; }
	@test "$$(id -u)" = 0 || { echo "Installing packages takes root: sudo make servers" >&2; exit 1; }
	@set -eu; \
	policy=/usr/sbin/policy-rc.d; \
	if [ ! -e $$policy ]; then \
	    trap 'rm -f '$$policy EXIT; \
	    printf '#!/bin/sh\nexit 101\n' > $$policy; \
	    chmod 755 $$policy; \
	fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq; \
	apt-get install -y -qq --no-install-recommends rabbitmq-server redis-server postgresql; \
	echo "RabbitMQ, Redis and PostgreSQL are installed. Their services were not started."

clean: ## Remove what make and the tools have built
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
