# The set-up is repeated only when pyproject.toml changes.
PYTHON ?= python3
PY := .venv/bin/python
# Without bytecode every process of the tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-fast test-matrix lint mutants record release docs clean

demo: .venv/ready  ## pretrain on handwritten digits, evaluate, write runs/digits/report.html
	$(PY) train.py

test: .venv/ready  ## every kind of contract, in minutes
	$(PY) -m pytest

# Long tests wait for the processes that they start, so one more worker than cores is used.
test-all: .venv/ready lint  ## what CI runs: lint, types, `test` and the tests marked "long"
	JAXSSL_FUZZ=$${JAXSSL_FUZZ:-1000} $(PY) -m pytest -m "" -n $$($(PY) -c 'import os; print(os.cpu_count() + 1)')

test-fast: .venv/ready  ## tests marked "fast": formulas, shapes, errors and parsing
	$(PY) -m pytest -m "fast and not long"

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

test-matrix:  ## the oldest and the newest packages on Python 3.11 to 3.13; CELLS="3.12-newest" takes some
	.ci/matrix $(CELLS)

mutants: .venv/ready  ## random defects that tests of a folder miss: FOLDER=losses SAMPLE=40 SEED=1
	$(PY) -m pip install --quiet --editable ".[dev]"
	$(PY) tests/mutants.py $(FOLDER) --sample $(or $(SAMPLE),40) --seed $(or $(SEED),1)

release: .venv/ready  ## all tests, then wheel, source archive, and the commands from both
	.ci/release

# After .venv/bin/pip install -e ".[cuda]"; DATA="--config.data.name=folder --config.data.path=PATH" takes pictures of yours.
record: .venv/ready  ## on an accelerator: checks, speed, methods on CIFAR-10 (docs/record.md); resumes
	$(PY) benchmarks/record.py --out runs/record/out $(DATA)
	$(PY) benchmarks/record.py --merge runs/record/out

.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: jaxssl needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --editable ".[test]"
	@touch $@

docs: .venv/ready .cache/mathjax/tex-svg-full.js  ## the documentation as site/index.html, with the reference of all functions
	$(PY) -m pip install --quiet --editable ".[docs]"
	$(PY) -m sphinx --quiet -W --keep-going docs site

# Without npm the site takes MathJax from a network when a page with formulas is read.
.cache/mathjax/tex-svg-full.js:
	-mkdir -p $(@D) && npm pack --silent --pack-destination .cache mathjax@3.2.2 && \
	  tar -xzf .cache/mathjax-3.2.2.tgz -C $(@D) --strip-components=2 package/es5/tex-svg-full.js

clean:
	rm -rf .venv .cache site jupyter_execute docs/generated
