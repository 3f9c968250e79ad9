# Each target sets up .venv by itself, and again only when the dependencies change.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test lint audit bench docs clean

demo: .venv/installed
	$(BIN)/srepr demo

test: .venv/installed
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder --cov --cov-report=
	$(BIN)/coverage report --skip-covered --fail-under 95

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/deptry src
	$(BIN)/codespell

audit: .venv/installed
	$(BIN)/python .ci/audit

bench: .venv/installed
	$(BIN)/python -m benchmarks

docs: .venv/installed
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
