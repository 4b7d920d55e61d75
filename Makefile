# Needs Python 3.11 or newer, make and pip; everything else goes into .venv, at the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
OUT ?= gpu
MINUTES ?= 7
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
BUILT := $(VENV)/built
KERNELS := $(shell find src -name '*.pyx' -or -name '*.pxd')
DOCS := .docs
# Tests of TensorFlow that have a process of their own.
ALONE := tests/tf2/test_training.py tests/tf2/execution/test_overlap.py

TORCH ?= 2.13.0

.PHONY: demo test test-tf2 test-scripts test-slow test-torch test-ecosystem check dist docs docs-links gpu clean

demo: $(BUILT)
	$(BIN)/checkmate demo --output demo-output

# Each framework in processes of its own: together they change each other's threads and memory. So do tests of TensorFlow: those with
# the tightest budgets need a memory pool that no other has cut into pieces. The rest, mostly search on one core, uses all of them: PyTorch with
# several threads in each would be many times slower, for they wait for each other without giving way. Where variables move, what a step
# takes depends on which threads come first: those tests run when nothing else does.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ignore=tests/tf2 --ignore=tests/benchmarks \
		--numprocesses logical --maxprocesses 8 --dist worksteal
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-tf2 test-scripts
	$(BIN)/python -m pytest tests/tf2/test_replan.py

test-tf2: $(BUILT)
	$(BIN)/python -m pytest tests/tf2 $(ALONE:%=--ignore=%) --ignore=tests/tf2/test_replan.py

test-scripts: $(BUILT)
	$(foreach part,$(ALONE) tests/benchmarks,$(BIN)/python -m pytest $(part) &&) true

# Those that `make test` leaves out, one after the other.
test-slow: $(BUILT)
	$(BIN)/python -m pytest -m slow --ignore=tests/tf2 --ignore=tests/benchmarks
	$(BIN)/python -m pytest -m slow tests/benchmarks
	$(BIN)/python -m pytest -m slow tests/tf2 $(ALONE:%=--ignore=%)
	$(foreach part,$(ALONE),$(BIN)/python -m pytest -m slow $(part) &&) true

# The tests of the PyTorch front end under the release of PyTorch that TORCH says, in an environment of its own; older ones bring CUDA
# along, several gigabytes, and ask for older releases of setuptools.
test-torch: .venv-torch-$(TORCH)/installed
	$(<D)/bin/python -m pytest tests/torch

.venv-torch-%/installed: pyproject.toml constraints.txt setup.py $(KERNELS)
	$(PYTHON) -m venv --clear $(@D)
	grep --extended-regexp --invert-match '^(torch|setuptools)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --constraint $(@D)/constraints.txt --editable '.[torch,test]' torch==$*
	touch $@

# The recipes of docs/pytorch.md with the packages that they are for. torchvision, which timm asks for, does not load beside a build of PyTorch
# without CUDA; a torchvision that is not there is one that packages do without, or skip their tests.
test-ecosystem: .venv-ecosystem/installed
	$(<D)/bin/python -m pytest tests/ecosystem "tests/test_tutorials.py::test_tutorial_runs[finetune_hugging_face]"

.venv-ecosystem/installed: pyproject.toml constraints.txt setup.py $(KERNELS)
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[torch,ecosystem,test]'
	$(@D)/bin/python -c 'import torchvision' 2> /dev/null || $(@D)/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

check: $(BUILT)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# A wheel and an archive, checked; the archive's own tests, run in it, with its own code; and the wheel used in an empty environment,
# where all that it brings along takes less than 100 MB.
dist: $(BUILT)
	rm -rf dist .archive
	$(PYTHON) -m venv --clear .release
	.release/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt build twine check-wheel-contents
	.release/bin/python -m build
	.release/bin/twine check --strict dist/*
	.release/bin/check-wheel-contents dist/*.whl
	mkdir .archive && tar -xzf dist/*.tar.gz -C .archive --strip-components 1
	cd .archive && ../$(BIN)/python setup.py --quiet build_ext --inplace
	cd .archive && PYTHONPATH=src ../$(BIN)/python -m pytest tests/test_*.py tests/solvers/test_solving.py --ignore=tests/test_tutorials.py
	$(PYTHON) -m venv --clear --without-pip .release
	$(BIN)/python -m pip --python .release/bin/python install --disable-pip-version-check --quiet --constraint constraints.txt dist/*.whl
	test "$$(du --summarize --bytes .release/lib | cut --fields 1)" -lt 100000000
	cd dist && ../.release/bin/checkmate solve resnet50 --batch 64 --budget 60% --time-limit 10

# The pages, without a warning. They are read without the frameworks: an environment of their own is soon made.
docs: $(DOCS)/installed
	$(DOCS)/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Links to other sites, which have to be reached for it.
docs-links: $(DOCS)/installed
	$(DOCS)/bin/python -m sphinx --builder linkcheck docs docs/_build/links

$(DOCS)/installed: pyproject.toml constraints.txt setup.py $(KERNELS)
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[torch,tf-cpu,plot,cbc,dev]'
	touch $@

# The kernels, again where one has changed; `pip install` has built them, but does not know of that.
$(BUILT): $(STAMP) setup.py $(KERNELS)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

# On a machine with a GPU, with the packages that are there; WHEELS is a folder with those that are not. It needs no network;
# kernels that did not come along (src/**/*.so) are built there, with Cython and a C compiler.
gpu:
	test -z "$(WHEELS)" || $(PYTHON) -m pip install --no-index --no-deps --target .gpu $(WHEELS)/*.whl
	PYTHONPATH=src:.gpu $(PYTHON) -c 'import checkmate.solvers.representation' || PYTHONPATH=.gpu $(PYTHON) setup.py --quiet build_ext --inplace
	PYTHONPATH=src:.gpu $(PYTHON) benchmarks/gpu.py --output $(OUT) --minutes $(MINUTES)

clean:
	rm -rf build src/*.egg-info $(VENV) .venv-* $(DOCS) docs/_build docs/tutorials .gpu .release .archive dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete
