# Every target does its own set-up in .venv; the second time it is fast.
PYTHON ?= python3
BIN := .venv/bin
# uv installs in a tenth of pip's time; pip does it where uv cannot be had, or does not find what pip's settings name.
# Nothing is compiled in advance: most of what is installed is never imported.
INSTALL = $(BIN)/python -m uv pip install --quiet $(1) 2>/dev/null || $(BIN)/python -m pip install --quiet --no-compile $(1)
ENVIRONMENT = test -x $(BIN)/python || $(PYTHON) -m venv .venv; \
	$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv || true
COMPILE := import gnomon; gnomon.simulate(requests=100, explained=True, timing={"source": "roofline"})
EXTRAS := import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*extras["silicon"], *extras["ui"])
WORKERS ?= auto
.DEFAULT_GOAL := help
.PHONY: help compile demo test test-slow check bench docs clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

# Parsed modules are kept in .venv, whatever the machine does elsewhere: half of a warm command is parsing without them.
unexport PYTHONDONTWRITEBYTECODE

.venv/base: pyproject.toml
	@$(ENVIRONMENT)
	@$(call INSTALL,--editable .)
	@# The engine is compiled while the larger extras are installed, which it does not need.
	@$(MAKE) --silent compile & { $(call INSTALL,$$($(BIN)/python -c '$(EXTRAS)')); } || echo "without the extras silicon and ui"; wait
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	@$(ENVIRONMENT)
	@$(call INSTALL,--constraint constraints.txt --editable '.[dev]')
	@touch .venv/base $@

compile:
	@$(BIN)/python -c '$(COMPILE)'

demo: .venv/base  ## Simulate Llama-3-8B under a chat load and write a report
	$(BIN)/gnomon simulate --out runs/demo

test: .venv/dev  ## The tests (a few minutes)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-slow: .venv/dev  ## The tests marked slow
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

check: .venv/dev  ## Format, lint, types, import contracts
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

bench: .venv/dev  ## Speed and memory figures, as ratios measured in one run
	$(BIN)/python -m benchmarks

docs: .venv/dev  ## The documentation site, in site/
	@$(call INSTALL,--editable '.[docs]')
	$(BIN)/mkdocs build --strict

clean:  ## Forget the environment and everything made
	rm -rf .venv site runs outputs .mypy_cache .ruff_cache .pytest_cache
