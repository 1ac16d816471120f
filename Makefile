# Every target does its own set-up in .venv; the second time it is fast.
PYTHON ?= python3
BIN := .venv/bin
# Not compiled in advance: that is a quarter of the installing, and most of what is installed is never imported.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
COMPILE := import gnomon; gnomon.simulate(requests=100, explained=True, timing={"source": "roofline"})
EXTRAS := import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*extras["silicon"], *extras["ui"])
WORKERS ?= auto
.DEFAULT_GOAL := help
.PHONY: help compile demo test test-slow check bench docs clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

.venv/base: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable .
	@# The engine is compiled while the larger extras are installed, which it does not need.
	@$(MAKE) --silent compile & $(INSTALL) $$($(BIN)/python -c '$(EXTRAS)') || echo "without the extras silicon and ui"; wait
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --constraint constraints.txt --editable '.[dev]'
	@touch .venv/base $@

compile:
	@$(BIN)/python -c '$(COMPILE)'

demo: .venv/base  ## Simulate Llama-3-8B under a chat load and write a report
	$(BIN)/gnomon simulate --out runs/demo

test: .venv/dev  ## The tests (a few minutes)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-slow: .venv/dev  ## The tests marked slow
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

check: .venv/dev  ## Format, lint, types, import contracts
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

bench: .venv/dev  ## Speed and memory figures, as ratios measured in one run
	$(BIN)/python -m benchmarks

docs: .venv/dev  ## The documentation site, in site/
	$(INSTALL) --editable '.[docs]'
	$(BIN)/mkdocs build --strict

clean:  ## Forget the environment and everything made
	rm -rf .venv site runs outputs .mypy_cache .ruff_cache .pytest_cache
