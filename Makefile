# Everything here works in a fresh clone with nothing but Python 3.11 or newer: each target makes what it
# needs in .venv and does nothing twice. `make PYTHON=python3.12 …` picks the interpreter.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python tools/install.py $(VENV)/install.log

# A stamp is newer than pyproject.toml when what that file asks for is installed.
PACKAGE := $(VENV)/.installed
DEMO    := $(VENV)/.installed-demo
CHECK   := $(VENV)/.installed-check
DEV     := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help demo demo-sim check test test-build test-all test-long lint format bench docs docs-version man dist kubernetes manifests sbom pins audit clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1 \t\2/p' $(MAKEFILE_LIST)

demo: $(DEMO) ## Train real jobs that compete for this machine, and watch them being resized
	$(BIN)/stretto demo

demo-sim: $(PACKAGE) ## Compare six policies on a small mixed cluster; the report goes to out/demo
	$(BIN)/stretto compare --cluster sia-hetero-64 --trace demo --policies stretto,sia,pollux,gavel,tiresias,fifo --out out/demo

# Types are checked by as many processes as there are processors.
MYPY_WORKERS := --num-workers $(shell getconf _NPROCESSORS_ONLN)
# Where PyTorch and Ray are not installed, mypy knows nothing of their types: `make lint` checks those too.
WITHOUT_TORCH := --ignore-missing-imports --allow-subclassing-any --allow-untyped-decorators \
  --no-warn-unused-ignores --no-warn-return-any --disable-error-code=call-overload

check: $(CHECK) ## Check style, types and what is pure, in a minute; needs a light installation only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --cache-dir .mypy_cache/check $(MYPY_WORKERS) $(WITHOUT_TORCH)
	$(BIN)/python -m tests.lanes check $(ARGS)

test: $(DEV) ## Run the tests but those of clusters and slow ones; ARGS="-k sia -x" narrows them
	$(BIN)/python -m tests.lanes test $(ARGS)

test-build: $(DEV) ## Run these and some of the others: what the build runs
	$(BIN)/python -m tests.lanes build $(ARGS)

test-all: $(DEV) ## Run these and all others: real Ray, Slurm and PostgreSQL, conformance, what is slow
	$(BIN)/python -m tests.lanes all $(ARGS)

test-long: $(DEV) ## Run the tests that take minutes: crashes by the hundred, scenes in full
	$(BIN)/pytest -m long $(ARGS)

lint: $(DEV) ## Check style, layout and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(MYPY_WORKERS)

format: $(DEV) ## Put every file into the house layout
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: export OMP_NUM_THREADS = 1
bench: $(PACKAGE) ## Time solver, placers and decisions on this machine; leave it otherwise idle
	$(BIN)/python benchmarks/solver.py
	$(BIN)/python benchmarks/placement.py
	$(BIN)/stretto bench decide --cluster sia-hetero-64 --trace demo --policy sia

kubernetes: ## Build the servers of Kubernetes that its tests start, once; a quarter of an hour
	tests/backends/kubernetes/build_control_plane.sh

docs: $(DEV) ## Build the site of the documentation in build/site, with its reference; fails at a broken link
	$(BIN)/python -m tools.documentation

INTO ?= build/versions
docs-version: $(DEV) ## Add the site of this version to those of others in INTO=build/versions, with a selector
	$(BIN)/python -m tools.documentation --into $(INTO) $(if $(VERSION),--version $(VERSION))

man: $(DEV) ## Write man pages of all commands to build/man
	$(BIN)/python -m tools.documentation.man

dist: $(DEV) ## Build wheel and source distribution in dist/
	$(BIN)/python -m build --outdir dist

manifests: $(DEV) ## Render the Helm chart into the bases of kustomize
	$(BIN)/python tools/render_chart.py

# What a service is made of, without the tools of development: installed by itself, and listed as CycloneDX.
SERVICE := build/service
sbom: $(DEV) ## Write the software bill of materials of an installed service to dist/sbom.json
	@rm -rf $(SERVICE) && mkdir -p dist && $(PYTHON) -m venv $(SERVICE)
	@$(SERVICE)/bin/python tools/install.py $(SERVICE)/install.log '.[serve,postgres]'
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file dist/sbom.json $(SERVICE)
	@$(BIN)/python -c "import json; parts = json.load(open('dist/sbom.json'))['components']; \
	  print(f'dist/sbom.json: {len(parts)} components')"

# For the Python of deploy/Containerfile, whichever runs here.
IMAGE_PYTHON := $(shell sed -n 's/^ARG PYTHON=.*python:\([0-9.]*\).*/\1/p' deploy/Containerfile)
pins: ## Pin what an image installs, with hashes, in deploy/requirements.txt
	@rm -rf build/pins && mkdir -p build && $(PYTHON) -m venv build/pins && build/pins/bin/pip install -q uv
	@build/pins/bin/uv pip compile pyproject.toml --extra serve --extra oidc --extra postgres --extra kubernetes \
	  --group image --python-version $(IMAGE_PYTHON) --python-platform linux --generate-hashes --no-annotate \
	  --no-emit-index-url --custom-compile-command 'make pins' --quiet --upgrade --output-file deploy/requirements.txt

audit: $(DEV) ## Ask the advisories of the Python index about every installed package; fails where one cannot be asked
	$(BIN)/pip-audit --strict --skip-editable --path $(VENV)/lib/python3.*/site-packages

clean: ## Remove the virtual environment, caches and results
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Stretto needs Python 3.11 or newer: set PYTHON, got $(PYTHON)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "no virtual environment: is the venv module (python3-venv) installed?" >&2; exit 1; }

$(PACKAGE): pyproject.toml | $(BIN)/python
	@echo "Installing Stretto into $(VENV); the first time takes a minute or two"
	@$(PIP) --editable .
	@touch $@

$(DEMO): pyproject.toml | $(BIN)/python
	@echo "Installing Stretto, PyTorch and scikit-learn into $(VENV); the first time takes a few minutes"
	@$(PIP) --editable '.[serve]' 'torch==2.13.0' 'scikit-learn>=1.5,<2'
	@touch $(PACKAGE) $@

$(CHECK): pyproject.toml | $(BIN)/python
	@echo "Installing Stretto and what checks it into $(VENV); the first time takes half a minute"
	@$(PIP) --editable '.[check]'
	@touch $(PACKAGE) $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing Stretto and its development tools into $(VENV); the first time takes a minute or two"
	@$(PIP) --editable '.[dev]'
	@touch $(PACKAGE) $(DEMO) $(CHECK) $@
