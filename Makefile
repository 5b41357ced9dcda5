.DEFAULT_GOAL := help
.PHONY: help setup demo test fast lint fmt oracle models pairs long mutants protocol spin chaos bench clean
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready ## the virtual environment, made anew only when what it holds has changed
	@:
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,serve,ucx]'
	@touch $@

demo: setup ## the block manager's life, told by the walk-through
	@$(BIN)/python examples/01_walkthrough.py

# Two at once: many tests wait, or begin processes of their own.
test: setup lint ## lint, then every test that needs no GPU and no long time
	@$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

fast: setup ## the tests alone, last time's failures first, up to the first failure
	@$(BIN)/python -m pytest -q -x --failed-first

lint: setup ## style, types, the floors of the house, its rules
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/house.py

fmt: setup ## format, and repair what ruff can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

oracle: setup ## replay the traces recorded from vLLM, and compare every field
	@$(BIN)/kvdist replay-trace tests/data/oracle/*.gz

models: setup ## the worker beside transformers: every family, every chunk size, real weights
	@$(BIN)/python -m pytest tests/worker -m slow

pairs: setup ## pairs beside transformers: every family, every transport; FLAGS="--model llama --prompts 20"
	@$(BIN)/python -m tests.pairs $(FLAGS)

long: setup ## what else takes minutes: each fault on each transport, storms, soaks, benchmarks of models
	@$(BIN)/python -m pytest tests/benchmarks tests/launch tests/links tests/scenarios tests/transports -m slow

mutants: setup ## plant bugs in the block manager; each must fail some test
	@$(BIN)/python -m pytest tests/mutation -m slow

protocol: setup ## plant bugs in the protocol's tables and rules; the simulator must find each
	@$(BIN)/python -m tests.mutation.protocol

spin: setup ## the transfer protocol's tables, checked by Spin; wrong ones must be rejected
	@$(BIN)/python tools/spin.py
	@$(BIN)/python -m pytest tests/models -m slow

chaos: setup ## real pairs, killed and stopped while clients are served; FLAGS="--seed 7 ..."
	@$(BIN)/python -m tests.chaos $(FLAGS)

bench: setup ## what the block manager costs
	@$(BIN)/python benchmarks/blocks.py

clean: ## remove what was made here
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
