# The same commands for people and for CI. Everything happens in a virtual environment of its own;
# VENV, PYTHON and TORCH may be overridden, and ARGS goes to pytest, the demo or the benchmarks.
PYTHON ?= python3
VENV ?= .venv
# Named exactly: with no torch installed, a looser requirement downloads gigabytes of CUDA packages.
TORCH ?= torch==2.13.0
ARGS ?=
# Where `make bench` measures: cpu or cuda.
DEVICE ?= cpu
# Whether `make wheel` has CUDA kernels in it.
CUDA ?= 0

BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet
BASE := $(VENV)/.lapkernels-base
INSTALLED := $(VENV)/.lapkernels-installed
LIBRARY := lapkernels/_native.abi3.so
NATIVE_SOURCES := $(shell find csrc tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)

.PHONY: demo docs test test-slow test-fake-cuda lint format wheel bench bench-networks bench-scaling bench-peers gpu-report clean venv
.DEFAULT_GOAL := test

venv: $(INSTALLED) $(LIBRARY)

# Installs without compiling; another rule compiles, once, and shows the compiler's messages.
# By a path and not by a finder, which a script beside a clone named lapkernels would not reach.
$(BASE): pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) numpy setuptools wheel ninja
	LAPKERNELS_NO_EXTENSION=1 LAPKERNELS_REQUIRE_EXTENSION= \
		$(PIP) --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	touch $@

# The installed package names what its extras need.
$(INSTALLED): $(BASE) tests/integrations/requirements.txt
	$(PIP) 'lapkernels[test,demo,lint,docs]'
	$(PIP) --no-deps --no-build-isolation -r tests/integrations/requirements.txt
	touch $@

# Without a compiler the target stays absent and the reference backend serves.
# Ninja finds the number of jobs by itself: it cannot read make's job server.
$(LIBRARY): setup.py $(filter csrc/%,$(NATIVE_SOURCES)) | $(BASE)
	MAKEFLAGS= PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python setup.py --quiet build_ext --inplace

demo: venv
	$(BIN)/python -m lapkernels demo $(ARGS)

# Those marked slow, of minutes, are for `make test-slow`.
test: venv
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow" $(ARGS)

# Every method on CUDA tensors without values: TORCH_CUDA is a Python with a CUDA build of torch
# (gigabytes: pip install torch numpy pytest in an environment of its own); no GPU is needed.
TORCH_CUDA ?= python
test-fake-cuda:
	PYTHONPATH=. $(TORCH_CUDA) -m pytest -s -p no:cacheprovider tests/fake_cuda $(ARGS)

test-slow: venv
	$(BIN)/python -m pytest -n 2 -q -m slow $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(if $(NATIVE_SOURCES),$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES))

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(NATIVE_SOURCES),$(BIN)/clang-format -i $(NATIVE_SOURCES))

# The site in build/docs; a warning is an error.
docs: venv
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

# A wheel for this platform, for any Python and torch, in dist/. CUDA=1 adds the CUDA kernels, which
# needs nvcc and no GPU; such a wheel is named after nvcc's major version.
wheel: $(INSTALLED)
	LAPKERNELS_REQUIRE_EXTENSION=1 LAPKERNELS_CUDA=$(CUDA) PATH="$(abspath $(BIN)):$$PATH" \
		$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# ARGS selects cases and options, for example ARGS="-k kronecker".
bench: venv
	mkdir -p benchmarks/results
	$(BIN)/python -m pytest benchmarks -q --benchmark-only --device $(DEVICE) \
		--benchmark-json=benchmarks/results/latest.json $(ARGS)
	$(BIN)/python -m benchmarks.report benchmarks/results/latest.json
	$(BIN)/python -m benchmarks.scaling --out benchmarks/results --draw benchmarks/results/latest.json

# Whole networks, ours and other packages in one table, piece by piece.
bench-networks: venv
	$(BIN)/python -m benchmarks.pieces $(ARGS)

# Time and memory against resolution, the picture of the README, piece by piece.
bench-scaling: venv
	$(BIN)/python -m benchmarks.scaling --out docs/measured $(ARGS)

# Registers, shared memory and occupancy of the kernels for GPUs; needs nvcc and triton, and no GPU.
gpu-report: venv
	$(BIN)/python -m benchmarks.cuda.compile
	env -u TRITON_INTERPRET $(BIN)/python -m benchmarks.triton.sheet

# Other packages to compare with. None may touch torch, so their requirements are left out.
bench-peers: venv
	$(PIP) --no-deps --no-build-isolation -r benchmarks/peers.txt

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks
	rm -f lapkernels/_native*.so lapkernels/_build.json
	find lapkernels tests -name __pycache__ -type d -prune -exec rm -rf {} +
