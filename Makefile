PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
SPEC   ?= infra/campaigns/rehearsal.yaml
# Containers often forbid Python to keep what it compiles. Each process that a test starts would then compile all modules
# anew: to collect the tests takes 17.6 s of a processor so, and 9.6 s with what an earlier process compiled.
export PYTHONDONTWRITEBYTECODE :=
# A file's tests share a world, so a file stays with one worker; whole campaigns, the longest, come first as they stand.
# Tests wait for a part of their time for what they started, so there are three workers for two cores. Four took 8:11 in
# place of 9:10 on a machine that was idle (2026-11-27), and leave a busy one nothing.
WORKERS ?= -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help setup venv lock tools rehearsal open-mpi test test-all test-aws test-unit drills mutants docs gpu-wheels bench-gpu lint \
	lint-types lint-playbooks lint-structure lint-layers lint-style doctor down clean

help:  ## What there is to make
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup:  ## Python packages and tools, in parallel
	@$(MAKE) --no-print-directory -j2 venv tools

venv: $(VENV)/.installed

PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

$(VENV)/.installed: pyproject.toml requirements/build.txt requirements/all.txt
	@echo "python packages: installing into $(VENV) (torch is large: two to five minutes the first time)"
	@test -e $@ && $(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r requirements/build.txt
	@$(PIP) install --require-hashes --no-build-isolation --no-deps -r requirements/all.txt
	@$(PIP) install --no-build-isolation --no-deps -e .
	@$(PIP) check
	@touch $@
	@echo "python packages: installed"

LOCKED = uv pip compile $(LOCK) --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links --quiet
lock:  ## Pins and sums anew, by `uv`, as pyproject.toml allows; LOCK=--upgrade takes the newest versions
	@$(LOCKED) --all-extras --output-file requirements/all.txt pyproject.toml
	@$(LOCKED) --constraint requirements/all.txt --output-file requirements/closer.txt pyproject.toml
	@$(LOCKED) --extra trainer --constraint requirements/all.txt --output-file requirements/image.txt pyproject.toml
	@$(LOCKED) --group steward --constraint requirements/all.txt --output-file requirements/steward.txt
	@printf 'setuptools\nwheel\n' | $(LOCKED) --constraint requirements/all.txt --output-file requirements/build.txt -

tools:
	@$(PYTHON) -m infra.toolchain ensure --all

rehearsal: setup  ## A whole campaign on this machine: spec to certificate
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/bivouac run $(SPEC)
	@$(BIN)/bivouac down --all --yes

test: setup lint  ## Tests that need neither AWS nor a GPU
	@$(BIN)/python -m pytest $(WORKERS) --durations=60 --durations-min=5

open-mpi:  ## Debian's Open MPI, if there is no mpirun: for jobs of launcher mpirun and their tests; needs root
	@command -v mpirun > /dev/null || { apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends openmpi-bin; }

test-all: setup lint open-mpi  ## The same, with those that take minutes each: for the night
	@$(BIN)/python -m pytest $(WORKERS) --durations=60 --durations-min=5 -m 'not aws and not gpu and not drill'

test-aws: setup  ## The first dollar: first-contact.yaml in your AWS account, with a node killed, or by DETACH=1 the driver; asks before it spends
	@PATH="$(abspath $(BIN)):$$PATH" BIVOUAC_DETACH="$(DETACH)" $(BIN)/python -m pytest -s -m aws tests/aws

test-unit: venv  ## The quick tests: pure logic and the resource graph
	@$(BIN)/python -m pytest tests/unit tests/graph

drills: setup  ## Seeded drills of kills, leaks, storage and more, an hour; DRILLS="leaks --seed 2" for some, DRILLS=--whole
	@PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH="$(CURDIR)" $(BIN)/python -m tests.drills.all $(DRILLS)

mutants: setup  ## Small changes of the code that tests must notice, 20 minutes; MUTANTS=--whole, MUTANTS="--module FILE"
	@$(BIN)/python -m tests.mutants $(MUTANTS)

docs: venv  ## The generated pages anew: spec, commands, waits, index of decisions
	@$(BIN)/python -m tests.docs

bench-%: setup  ## One benchmark, a table with its peer: see tests/bench for the names
	@PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH="$(CURDIR)" $(BIN)/python -m tests.bench.$* $(BENCH)

GPU_WHEELS := .whl
GPU_TABLE ?= gpu.json
CARRIED := hjson|pydantic|pydantic-core|annotated-types|typing-inspection
PLATFORMS := --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64
gpu-wheels: venv  ## What a GPU machine without network lacks for bench-gpu, as wheels in .whl
	@rm -rf $(GPU_WHEELS)
	@$(PIP) wheel --no-deps --no-build-isolation -w $(GPU_WHEELS) $$(grep -oE '^deepspeed==[^ ]+' requirements/image.txt)
	@$(PIP) download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $(PLATFORMS) \
	-d $(GPU_WHEELS) $$(grep -oE '^($(CARRIED))==[^ ]+' requirements/image.txt)
	@du -sh $(GPU_WHEELS)

bench-gpu:  ## One GPU, by python3 with torch and the wheels in .whl, without network: docs/benchmarks.md
	@rm -rf build/gpu && mkdir -p build/gpu && for wheel in $(GPU_WHEELS)/*.whl; do python3 -m zipfile -e "$$wheel" build/gpu || exit 1; done
	@touch tests/__init__.py  # another package may have a folder of this name
	@PYTHONPATH="build/gpu:$(CURDIR)" python3 -m tests.bench.gpu --table $(GPU_TABLE) $(BENCH); \
	code=$$?; rm -f tests/__init__.py; exit $$code

LINTS := lint-types lint-playbooks lint-structure lint-layers lint-style
lint: venv  ## Style, types, layers, structure
	@$(MAKE) --no-print-directory -j2 --output-sync $(LINTS)

lint-style:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

lint-types:
	@$(BIN)/mypy --explicit-package-bases infra trainer tests

lint-layers:
	@$(BIN)/lint-imports > /dev/null || $(BIN)/lint-imports

lint-structure:
	@$(BIN)/python -m tests.structure

lint-playbooks:
	@cd playbooks && PATH="$(abspath $(BIN)):$$PATH" ansible-lint --offline -q

doctor: venv  ## What is here, what is missing, and its cure
	@$(BIN)/bivouac doctor

down:  ## Remove every rehearsal site of this machine
	@$(BIN)/bivouac down --all --yes

clean:  ## Remove the sites and the environment; the tools' cache stays
	@if test -e $(VENV)/.installed; then $(MAKE) --no-print-directory down; \
	else echo "without a whole environment the sites cannot be removed and stay, see 'make down'"; fi
	@rm -rf $(VENV) build *.egg-info
