# Every command a contributor needs. The first one sets up .venv; PYTHON=... picks the interpreter.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PACKAGES := packages/ptir-core packages/ptir-backend-ref packages/ptir-backend-c \
            packages/ptir-backend-opencl packages/ptir-backend-cupy packages/ptir-testsuite
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/pins.txt
# Two workers on one BLAS thread each: threads of both would fight over the same cores.
# The slice of the gate: another with each commit, the same for the same number.
PTIR_SLICE ?= $(shell $(PYTHON) scripts/slice_number.py)
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo test prove parity lint check format docs wheels release bench clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## create .venv with pinned dependencies and the editable workspace

$(READY): VERSION $(wildcard requirements/*.txt) $(addsuffix /pyproject.toml,$(PACKAGES))
	$(PYTHON) scripts/check_python.py
	$(PYTHON) -m venv --clear .venv
	$(PIP) -r requirements/build.txt
	$(PIP) --no-build-isolation -r requirements/dev.txt $(addprefix -e ,$(PACKAGES))
	touch $@

demo: $(READY)  ## generate text with the model that travels with ptir-core
	$(BIN)/ptir run demo -p "ROMEO:" -n 120 --temp 0.8 --seed 1 --backend ref

test: $(READY)  ## run the gate's slice of the tests, in minutes; PTIR_SLICE=K repeats one
	PTIR_SLICE=$(PTIR_SLICE) $(PYTEST)

prove: $(READY)  ## run everything, in hours: all tests, whole corpora, all planted faults
	$(BIN)/python scripts/prove.py build/proof

parity: $(READY)  ## install PyTorch and Transformers, and compare with them
	$(PIP) -r requirements/parity.txt
	$(BIN)/python -m pytest -m parity

lint: $(READY)  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint  ## everything that must hold before a change: format, lint, types, tests, docs
	PTIR_SLICE=$(PTIR_SLICE) $(PYTEST) --durations 25

format: $(READY)  ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## build the documentation site into build/docs; warnings are errors
	$(PIP) -r requirements/docs.txt
	$(BIN)/python scripts/draw_charts.py --check
	$(BIN)/python -m sphinx -W --keep-going -n -q -j 2 -c docs/site docs build/docs
	@echo "build/docs/index.html"

wheels: $(READY)  ## build what is published into dist/, and check what it holds
	$(BIN)/python scripts/release.py --files

release: $(READY)  ## the same from nothing, and install and try each alone; PYTHONS="a b" with several
	$(BIN)/python scripts/release.py $(addprefix --python ,$(PYTHONS))

bench: $(READY)  ## run the benchmarks
	set -e; for benchmark in $(wildcard benchmarks/[a-z]*.py); do \
	    $(BIN)/python $$benchmark; done

clean:  ## remove .venv, built wheels and caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
