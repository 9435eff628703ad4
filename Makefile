# Every target sets up .venv on its first run and again when the pins change.
VENV ?= .venv
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := $(VENV)/bin
# Where this is set, each of the many processes that the tests start compiles the sources anew.
export PYTHONDONTWRITEBYTECODE :=
STAMP := $(VENV)/.installed

.PHONY: help setup demo demo-long demo-c test test-cortex-m test-slow lint type gap-table bench documents reference pictures site clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):.*## (.*)$$/\1|\2/' | awk -F'|' '{printf "make %-18s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "poet needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "set-up of $(VENV), once: 3 to 6 minutes, most of them downloads (1 to 3 GB, mostly torch)"
	@echo "[1/3] virtual environment (5 s)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[2/3] packages, by pip (2 to 5 minutes)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	@echo "[3/3] compiling the loops of the planner (a minute of a core)"
	$(BIN)/python -m poet.solvers
	@touch $@

setup: $(STAMP) ## the virtual environment, with pinned versions

demo: $(STAMP) ## a real model: export, plan for a Raspberry Pi 4B, picture, train with paging, verify (a minute)
	$(BIN)/python examples/demo.py

demo-long: $(STAMP) ## the same with a net of twice the width, and more stages (three minutes)
	$(BIN)/python examples/demo.py --long

test: $(STAMP) ## the tests that take seconds
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-slow: $(STAMP) ## the proofs that take minutes
	$(BIN)/python -m pytest -q -m slow -n 2 --dist loadfile $(if $(WITHIN),--begin-within $(WITHIN) -rs)

lint: $(STAMP) ## ruff: rules and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(STAMP) ## mypy --strict
	$(BIN)/mypy

bench: $(STAMP) ## a benchmark or table: make bench NAME=c99-table ARGS='--help'; without a name, lists them
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

gap-table: $(STAMP)  # no plan, bound or gap is worse than in benchmarks/gap_table.json (two minutes)
	$(BIN)/python -m benchmarks gap-table --spread $(or $(SPREAD),0)

demo-c: $(STAMP) ## ResNet-8 as C99: planned, exported, linked into its RAM, trained here and on a Cortex-M4F in QEMU
	$(BIN)/python examples/demo_c.py

test-cortex-m: $(STAMP)  # exported C on a Cortex-M4F in QEMU (apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm)
	@command -v arm-none-eabi-gcc qemu-system-arm >/dev/null || { echo "no cross compiler or QEMU here: apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm" >&2; exit 2; }
	$(BIN)/python -m pytest -q -m slow tests/c99 -k cortex_m

pictures: $(STAMP) ## docs/images: what the HTML reports look like, in Chromium (apt-get install chromium chromium-driver)
	@command -v chromium chromedriver >/dev/null || { echo "no browser here: apt-get install chromium chromium-driver" >&2; exit 2; }
	POET_PICTURES=docs/images $(BIN)/python -m pytest -q -m '' tests/report/test_html_browser.py -k pictures

documents: $(STAMP) ## the outputs on the pages, made again by running their commands (long)
	$(BIN)/python tests/tools/documents.py --write

reference: $(STAMP)  # docs/commands.md, api.md and operators.md, made of the code
	$(BIN)/python tests/tools/reference.py --write

site: $(STAMP) ## the documentation as a searchable site in build/site, strict about links
	$(BIN)/python -m pip install --quiet --constraint constraints.txt zensical
	$(BIN)/zensical build --strict

clean: ## what the targets above made, the virtual environment included
	rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
