# `make test` and `make demo` install everything they need into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete
TITAN := .venv/torchtitan
TIMM := .venv/timm
WORKERS ?= 2

# Where the environment turns cached bytecode off, every process of the tests would compile the package
# again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv postgres browser torchtitan lint test demo docs refresh drills bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

venv: $(STAMP)  ## create the virtual environment, or update it if its inputs changed

# One pip command, so that the pinned torch is chosen before anything that depends on torch.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $(STAMP)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11; run make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,docs]'
	@# References for tests, without their dependencies: a torchvision that does not match torch
	@# breaks transformers.
	@$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt mup diffusers
	@# timm in its own folder: transformers imports it if it can, and fails without torchvision.
	@rm -rf $(TIMM)
	@$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt --target $(TIMM) timm
	@touch $(STAMP)

# The tests of studies start their own PostgreSQL server.
postgres:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
	    echo "installing PostgreSQL"; \
	    sudo=$$(test "$$(id -u)" = 0 || echo sudo); \
	    $$sudo apt-get -qq update && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql >/dev/null; }

# The tests of the report open it in a real browser.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	    echo "installing Chromium"; \
	    sudo=$$(test "$$(id -u)" = 0 || echo sudo); \
	    $$sudo apt-get -qq update && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; }

# torchtitan, which reads our export, in its own folder.
torchtitan: $(TITAN)/.complete

$(TITAN)/.complete: $(STAMP) tests/recipes/torchtitan.txt
	@rm -rf $(TITAN)
	@$(BIN)/python -m pip install --quiet --no-deps --target $(TITAN) -r tests/recipes/torchtitan.txt
	@touch $(TITAN)/.complete

lint: venv  ## check style, formatting and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --warnings

test: lint postgres browser torchtitan  ## run everything that CI runs
	@# Each file runs in one process, so that its tests share fixtures; in order, so that small
	@# files come last.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(TITAN) TORCHTITAN=1 $(BIN)/python -m pytest -q tests/recipes/test_torchtitan.py tests/foreign/test_torchtitan.py

demo: venv  ## run every stage, to a recipe for Llama-3 8B: a few minutes
	@$(BIN)/mupscale demo

docs: venv  ## build the site; then open site/index.html
	@$(BIN)/python -m website.pages build/pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "the site: site/index.html"

refresh: venv  ## write the current output of commands into the documents
	@$(BIN)/python -m website.refresh

drills: venv  ## run the slow checks; their tables go to results/drills/
	@for drill in drills/*.py; do \
	    name=$$(basename $$drill .py); echo "drill: $$name"; \
	    $(BIN)/python $$drill > results/drills/$$name.txt || exit 1; cat results/drills/$$name.txt; done

bench: venv  ## run the benchmarks; their tables go to results/benchmarks/
	@mkdir -p results/benchmarks
	@for benchmark in benchmarks/*.py; do \
	    name=$$(basename $$benchmark .py); echo "benchmark: $$name"; \
	    $(BIN)/python $$benchmark > results/benchmarks/$$name.txt || exit 1; cat results/benchmarks/$$name.txt; done

clean:  ## remove what the other targets created
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis runs build site
