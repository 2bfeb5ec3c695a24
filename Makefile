# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first; a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
# Half of pytest's time is torch's; two workers with one thread each fill two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: setup demo test lint bench fuzz clean

setup: .venv/.stamp

.venv/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/contmax demo

test: setup
	$(PYTEST) -m 'not graph'
	$(PYTEST) -m graph --without-typechecker

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m contmax_lab.bench

# Hostile inputs for every public function: make fuzz MINUTES=60
MINUTES ?= 5
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(MINUTES)

clean:
	rm -rf .venv
