# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first; a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
# Bytecode is cached even where the environment says not to: without it every process compiles torch anew, ten seconds.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# Two workers with one thread each fill two cores. A file stays with one worker: its tests share trainings.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
CHECKED := $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m 'not graph'
TRACED = $(PYTEST) -m graph --without-typechecker $(shell grep -rl --include='*.py' mark.graph tests)

# A GPU's machine may have torch, triton, numpy and pytest and no network: an interpreter that is named is taken as it is.
ifeq ($(origin PYTHON),file)
GPU_PYTHON := $(BIN)/python
GPU_SETUP := .venv/.stamp
else
GPU_PYTHON := PYTHONPATH=src $(PYTHON)
endif

.PHONY: setup demo test test-plain test-gpu test-versions lint docs bench bench-gpu fuzz fuzz-gpu clean

setup: .venv/.stamp

# The environment comes in two parts, because installing what the demo does not need takes longer than what it needs.
.venv/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[cpu,lab]'
	touch $@

.venv/.stamp: .venv/.demo
	$(INSTALL) -e '.[dev]'
	touch $@

demo: .venv/.demo
	$(BIN)/contmax demo

# Compiles the CPU kernels into their cache on disk, so that no two processes of the tests compile the same kernel.
.venv/.kernels: .venv/.stamp $(wildcard src/contmax/kernels/*/_cpu*.py src/contmax/kernels/cpu/*.py)
	OMP_NUM_THREADS=1 $(BIN)/python -m contmax.kernels.compile_ahead
	touch $@

# Both at once, so that neither waits for the other's last test; the second is shown when the first is done.
test: .venv/.kernels
	@$(TRACED) > .venv/traced.log 2>&1 & traced=$$!; trap 'kill $$traced' INT TERM; \
	$(CHECKED); checked=$$?; \
	wait $$traced; failed=$$?; cat .venv/traced.log; \
	exit $$((checked || failed))

# The suite in Triton's own interpreter, with nothing replaced: an hour instead of minutes.
test-plain: .venv/.kernels
	$(CHECKED) --plain
	$(TRACED) --plain

# Every layer on CUDA against float64 on the CPU: make test-gpu, or make test-gpu PYTHON=python3 without any set-up.
test-gpu: $(GPU_SETUP)
	$(GPU_PYTHON) -m pytest -m gpu --without-typechecker $(shell find tests -name 'test_*_cuda.py' | sort)

# The core of the suite on other versions of Python, torch, NumPy and numba, an environment each, and a table at the end:
# make test-versions POINTS="oldest newest"; tests/versions/points.toml has their names. It downloads gigabytes.
POINTS ?=
test-versions:
	$(PYTHON) tests/versions/try_points.py $(POINTS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Warnings are errors, a link that leads nowhere among them. The pages are build/docs/index.html.
docs: .venv/.kernels
	OMP_NUM_THREADS=1 MPLBACKEND=agg $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/docs

bench: setup
	$(BIN)/python -m contmax_lab.bench

bench-gpu: $(GPU_SETUP)
	$(GPU_PYTHON) -m contmax_lab.bench --device cuda

# Hostile inputs for every public function: make fuzz MINUTES=60
MINUTES ?= 5
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(MINUTES)

# The same on a GPU, under a watchdog that names what hangs: make fuzz-gpu MINUTES=10, with PYTHON=python3 as above.
fuzz-gpu: $(GPU_SETUP)
	$(GPU_PYTHON) -m fuzz.gpu --minutes $(MINUTES) --output results/fuzz-gpu.json

clean:
	rm -rf .venv
