# Every target makes what it needs: no activation, safe to run twice. `make help` lists them.
#
#   PYTHON=python3.12                the interpreter (3.11 or newer); default: the first one found
#   PIP_INDEX_ARGS="--index-url URL" another package index, for a CPU-only torch say
#   JOBS=2                           test processes
#   SOAK=20000                       bad inputs of make soak

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
PIP_INDEX_ARGS ?=
JOBS ?= 2
SOAK ?= 20000

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_INDEX_ARGS) -c constraints.txt
# One thread per process, so that tests, their workers and local ranks do not compete for cores. Bytecode
# is written, so that the hundreds of processes that tests start do not each compile the package.
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SESSION := -n $(JOBS) --dist worksteal
# Where kernels meet layers and models, tests run with shapes checked at each call, which takes half as long again. The others have that
# in `make ci`, in the session without the kernels: all rooms in which layers compute. Commands compose them, in processes of their own,
# benchmarks and ranks too, checkpoints and the exchange convert and store weights, and planning counts them.
COMPUTING := $(addprefix tests/,agreement kernels layers models) transom
OTHERS := $(addprefix tests/,bad_input benchmarks chaos checkpoints cli config data decoding docs exchange files inspection lab parallel planning serving \
	tasks training) $(wildcard tests/test_*.py)
WITHOUT_LAYERS := $(addprefix tests/,bad_input benchmarks chaos checkpoints cli config docs exchange files parallel planning)
BY_REFERENCE := $(filter-out transom $(WITHOUT_LAYERS) %.py,$(COMPUTING) $(OTHERS))
FIRST_TIER := "not long and not soak and not compile and not chaos"
PLAIN := -o addopts="--strict-markers --strict-config --import-mode=importlib"

.PHONY: help demo test ci check chaos sanitize soak bench docs site notebooks size release-check clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train the built-in phrasebook translator, translate, write a report"
	@echo "make test    all checks and the fast tests"
	@echo "make ci      make test, the site, the long checks, torch.compile, and tests without the kernels"
	@echo "make check   ruff, mypy, the rules of prose and the size of files"
	@echo "make chaos   kill trainings at random moments, resume, compare bit for bit"
	@echo "make sanitize  the native code under address, undefined-behavior and thread sanitizers"
	@echo "make soak    20,000 bad inputs (SOAK=1000 for fewer), 100,000 certified attention maps, whole recipes, every combination of components"
	@echo "make bench   speed beside the peers, in one run"
	@echo "make docs    regenerate docs/config.md, components.md, names.md, worked-examples.md and presets.md"
	@echo "make site    build the documentation as a web site in build/site, and check its links"
	@echo "make notebooks  execute the notebooks and store their outputs"
	@echo "make size    lines of code per file and per package"
	@echo "make release-check  build sdist and wheel; install the wheel in a new environment; run the demo and a plugin there"
	@echo "make clean   remove .venv and caches, never runs/"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install one or say make PYTHON=/path/to/python"; exit 2; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments; install its venv package (python3-venv)"; exit 2; }
	"$(PYTHON)" -m venv $(VENV)

# A stamp is written after a whole installation, so that a broken one is done again.
$(VENV)/core.stamp: constraints.txt pyproject.toml | $(BIN)/python
	@echo "installing transom into $(VENV) (once; a few minutes)"
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation -e ".[images]"
	@touch $@
	@echo "installed; this makes transom known to your shell: . $(BIN)/activate"

$(VENV)/dev.stamp: $(VENV)/core.stamp
	@echo "installing what the tests need"
	@$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/docs.stamp: $(VENV)/core.stamp
	@echo "installing what the site needs"
	@$(PIP) --no-build-isolation -e ".[docs]"
	@touch $@

$(VENV)/bench.stamp: $(VENV)/core.stamp
	@$(PIP) --no-build-isolation -e ".[bench]"
	@touch $@

demo: $(VENV)/core.stamp
	@$(BIN)/transom demo

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; $(BIN)/python tests/prose.py && $(BIN)/python tests/size.py; others=$$?; wait $$types && exit $$others

test: check
	$(TEST) $(SESSION) $(COMPUTING)
	$(TEST) $(SESSION) $(PLAIN) -m $(FIRST_TIER) $(OTHERS)

ci: test site
	$(TEST) $(SESSION) $(PLAIN) -m "(long or compile) and not soak" tests
	TRANSOM_KERNELS=reference $(TEST) $(SESSION) $(BY_REFERENCE)

chaos: $(VENV)/dev.stamp
	$(TEST) $(PLAIN) -m chaos -s tests

sanitize: $(VENV)/dev.stamp
	$(BIN)/python -m tests.kernels.sanitize

soak: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.bad_input --count $(SOAK) --jobs $(JOBS)
	$(BIN)/python -m benchmarks.certification --maps $$(($(SOAK) * 5))
	$(TEST) $(SESSION) $(PLAIN) -m soak tests

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.translation --out benchmarks/results/translation.json

docs: $(VENV)/core.stamp
	$(BIN)/python -m transom.config.config_docs docs
	$(BIN)/python -m transom.inspection.vocabulary docs
	$(BIN)/python -m transom.lab.lesson docs
	$(BIN)/python -m transom.lab.preset_page docs

site: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs -d build/doctrees . build/site
	$(BIN)/python -m tests.site build/site
	@echo "open build/site/index.html"

notebooks: $(VENV)/dev.stamp
	$(BIN)/python -m tests.notebooks

size: | $(BIN)/python
	@$(BIN)/python tests/size.py

release-check: $(VENV)/dev.stamp
	$(BIN)/python -m tests.release $(PIP_INDEX_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
