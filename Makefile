# Everything runs in .venv, which `make install` makes. Type `make` for the list of targets.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
WORKERS ?= 2
ifndef RUN_DIR
RUN_DIR := runs/demo-$(shell date +%Y%m%d-%H%M%S)
endif

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED)  ## make .venv and install bertlab with its pinned dependencies

# Runs again only when the dependencies change.
$(INSTALLED): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
			echo "bertlab needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is: $$($(PYTHON) --version 2>&1)"; \
			echo "name another one:  make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }; \
		$(PYTHON) -m venv --clear .venv; }
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install  ## pretrain a small encoder on the embedded corpus and fill three masks with it
	$(BIN)/python train.py experiment=demo run_dir="$(RUN_DIR)"
	$(BIN)/python scripts/fill_mask.py "$(RUN_DIR)/model" "In the beginning God created the heaven and the [MASK] ."
	$(BIN)/python scripts/fill_mask.py "$(RUN_DIR)/model" "And the children of [MASK] did so , as the LORD commanded Moses ."
	$(BIN)/python scripts/fill_mask.py "$(RUN_DIR)/model" "O give thanks unto the [MASK] ; for he is good ."
	@echo "the run folder: $(RUN_DIR)"

test: install  ## run the test suite but for its slow tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-slow: install  ## run the slow tests
	$(BIN)/python -m pytest -m slow

check: install  ## lint, formatting, types and the architecture test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

clean:  ## remove .venv and every cache in this folder; runs stay
	rm -rf .venv build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path './runs/*' -prune -exec rm -rf {} +
