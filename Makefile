# Two commands: `make run` shows the whole product, `make test` checks all of it.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: run test check lint types layers unit cluster kubeflow servers docs clean sbom
.DEFAULT_GOAL := run

$(STAMP): pyproject.toml constraints.txt infra/install.sh
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: set PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	sh infra/install.sh $(BIN)/python --editable '.[dev]'
	@touch $(STAMP)

run: $(STAMP)
	$(BIN)/python run.py quickstart

test: $(STAMP) lint types layers unit

check: test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy --num-workers 2

layers: $(STAMP)
	$(BIN)/lint-imports --no-cache

# One thread for each worker: two that wait for one core spin, and take three times as long.
# Compiled files are kept, or each process that a test starts compiles the library again.
# Which tests share a process: tests/conftest.py.
unit: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -q -m "not slow and not gpu"

cluster: $(STAMP)
	$(BIN)/python -m pytest tests/cluster -q

# An environment of its own: infra/kubeflow/install.sh says why.
kubeflow:
	sh infra/kubeflow/install.sh build/kubeflow dev,kubeflow
	build/kubeflow/bin/python -m pytest tests/kubeflow -q

servers: $(STAMP)
	$(BIN)/python -m pytest tests/servers -q

# build/site/index.html opens from the disk; nothing is fetched, while building or reading.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# An environment of its own, as in the images: what it needs makes others load slower.
sbom: $(STAMP)
	test -x build/sbom/bin/cyclonedx-py || $(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet --constraint constraints.txt cyclonedx-bom
	build/sbom/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom.cdx.json $(BIN)/python
	$(BIN)/python -m pytest tests/infra/test_docker.py -q -k sbom
	@echo "build/sbom.cdx.json lists every package of $(VENV). An image holds its own: /opt/venv/sbom.cdx.json"

clean:
	rm -rf .dptune .pytest_cache .mypy_cache .ruff_cache
