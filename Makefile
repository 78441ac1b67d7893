# make demo: text from a model that ships with the package.   make test: the whole suite.   make clean: start afresh.
PYTHON ?= python3
BIN := .venv/bin
# Debian's package of R; elsewhere the package is called R or r.
R_PACKAGE := r-base-core

.PHONY: demo test lint bench r clean

demo: .venv/.installed
	$(BIN)/minhub generate minhub/shakespeare-gpt2 "ROMEO:" --max-new-tokens 400 --temperature 0.8 --seed 1

test: .venv/.installed-test r lint
	$(BIN)/python -m pytest

lint: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.installed-test
	$(BIN)/python tests/benchmarks/load.py
	$(BIN)/python tests/benchmarks/convert.py
	$(BIN)/python tests/benchmarks/layout.py
	$(BIN)/python tests/benchmarks/generate.py

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "Python's venv is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.installed: .venv/.created pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

.venv/.installed-test: .venv/.created pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@ .venv/.installed

# R is installed where it is missing and may be: by root, or by a user whose sudo asks for no password.
r:
	@command -v R >/dev/null || { \
		if ! command -v apt-get >/dev/null; then SUDO=no; \
		elif [ "$$(id -u)" = 0 ]; then SUDO=; \
		elif sudo -n true 2>/dev/null; then SUDO=sudo; else SUDO=no; fi; \
		if [ "$$SUDO" = no ]; then echo "R is missing: install the package $(R_PACKAGE), then run make again"; exit 1; fi; \
		$$SUDO apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive $$SUDO apt-get -qq install --no-install-recommends $(R_PACKAGE); }

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache
