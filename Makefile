# Two commands are enough: `make demo` and `make test`. Each makes .venv first when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test slow check format clean

demo: .venv/ready
	$(BIN)/combemb demo --overwrite

test: .venv/ready check
	$(BIN)/python -m pytest -n 2 --dist loadfile

slow: .venv/ready
	$(BIN)/python -m pytest -n 2 -m slow

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
