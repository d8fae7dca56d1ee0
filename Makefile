# make demo    sets everything up in .venv and trains a small GPT-2 on a simulated v3-32
# make test    sets everything up in .venv and runs the tests, but the long ones
# make long    the tests that take minutes each: what CI runs besides
# make nightly  repetitions and series beyond those of CI: run by hand before a release
# make compilers  the programs of every strategy, compiled for TPUs and GPUs; installs their compilers (270 MB to download)
# make newest  the runtime's tests that depend on JAX, and a simulated pod, with the newest Python of pyenv's folder and the newest JAX: CI runs it as well
# make mutants small mistakes in the guarding modules, one at a time: whether the tests notice
# make check   what CI checks besides: lint, format, types
# make docs    writes the pages that are made from the code: docs/keys.md, docs/commands.md
# make site    writes the documentation as a site, to site/

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test long nightly compilers newest mutants check docs site clean

demo: $(VENV)/installed
	$(BIN)/podrun --slice v3-32 --simulate examples/gpt2_tiny.yaml

test: $(VENV)/installed
	# Three at a time on two cores: many tests wait, for hosts that are cut off or for leases to end. What a file shares is made once.
	$(BIN)/python -m pytest -m "not long and not nightly and not compilers" --durations=20 -n 3 --dist loadfile --no-loadscope-reorder

long: $(VENV)/installed
	$(BIN)/python -m pytest -m "long and not nightly and not compilers" --durations=20 -n 3 --dist loadfile --no-loadscope-reorder

nightly: $(VENV)/installed
	$(BIN)/python -m pytest -m "nightly and not compilers" --durations=20 -n 2 --dist loadfile --no-loadscope-reorder

compilers: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[tpu,cuda]"
	$(BIN)/python -m pytest tests/compilers --durations=5 -n 2 --dist loadfile --no-loadscope-reorder

newest:
	PYTHON=$(PYTHON) .ci/newest

mutants: $(VENV)/installed
	# MUTANTS="--module session --limit 50 --seed 2" for some of them, or others.
	$(BIN)/python -m tests.mutants $(MUTANTS)

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	# Types are checked as a user sees them: on the installed package, under its installed name.
	rm -rf build .typecheck
	$(BIN)/pip install --quiet --no-deps --target .typecheck .
	MYPYPATH=.typecheck $(BIN)/mypy --strict -p podrun
	rm -rf build .typecheck

site: docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs: $(VENV)/installed
	$(BIN)/python docs/write_pages.py

$(VENV)/installed: setup.py setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "podrun needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing podrun, JAX and the test tools into $(VENV) (about 1.3 GB, a few minutes) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[test]"
	@touch $@

clean:
	rm -rf $(VENV) .venv-newest build .typecheck *.egg-info
