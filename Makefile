# Every target sets up .venv on its first run and again when the pins change.
VENV ?= .venv
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := $(VENV)/bin
# Where this is set, each of the many processes that the tests start compiles the sources anew.
export PYTHONDONTWRITEBYTECODE :=
STAMP := $(VENV)/.installed

.PHONY: help setup demo demo-c c99-table c99-library-table c99-numbers-table c99-operators-table arenas-table time-table test test-cortex-m test-slow lint type models-table strips-picture nets-table gap-table bench-planner bench-large-graphs bench-large-rivals bench-small-ram bench-other-nets bench-other-searches language-model bench-layout devices-table calibration-table robust-table fuzz faults-table runtime-table peaks-table torch-peers torch-solver bits-table stream-table micro-table shape-bytes-table documents reference pictures site clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):.*## (.*)$$/\1|\2/' | awk -F'|' '{printf "make %-18s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "poet needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m poet.solvers.heuristics.local_search
	@touch $@

setup: $(STAMP) ## the virtual environment, with pinned versions

demo: $(STAMP) ## a real model: export, plan for a Raspberry Pi 4B, train with paging, verify
	$(BIN)/python examples/demo.py

test: $(STAMP) ## the tests that take seconds
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-slow: $(STAMP) ## the proofs that take minutes
	$(BIN)/python -m pytest -q -m slow -n 2 --dist loadfile $(if $(WITHIN),--begin-within $(WITHIN) -rs)

lint: $(STAMP) ## ruff: rules and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(STAMP) ## mypy --strict
	$(BIN)/mypy

models-table: $(STAMP) ## results/models.md: every model imported, planned and verified (an hour; goes on where it was; MODELS='--again')
	$(BIN)/python examples/models_table.py --time-limit 10 $(MODELS)

strips-picture: $(STAMP) ## docs/images/strips-resnet18.svg: RAM over a step of ResNet-18, ops whole and in strips (two minutes)
	$(BIN)/python examples/strips_picture.py

nets-table: $(STAMP) ## results/nets.md: fourteen usual nets as modules and by both exporters, trained and loaded back
	$(BIN)/python examples/nets_table.py

gap-table: $(STAMP) ## no plan, bound or gap is worse than in tests/benchmarks/gap_table.json (two minutes)
	$(BIN)/python tests/benchmarks/gap_table.py --spread $(or $(SPREAD),0)

bench-planner: $(STAMP) ## results/planner-benchmark.md: problems x budgets x engines, and the baselines (20 minutes)
	$(BIN)/python tests/benchmarks/planner.py

bench-large-graphs: $(STAMP) ## results/large-graphs.md: seven exported nets x three devices x four budgets, 60 s each (an hour and a half)
	$(BIN)/python tests/benchmarks/large_graphs.py

bench-large-rivals: $(STAMP) ## results/large-graphs-rivals.md: the other planners on the same problems, after bench-large-graphs
	$(BIN)/python tests/benchmarks/large_rivals.py

bench-small-ram: $(STAMP) ## results/small-nets.md: plan, bound and what is open, nets of microcontrollers in little RAM, 60 s each (three hours)
	$(BIN)/python tests/benchmarks/small_ram.py $(SMALL_RAM)

bench-other-nets: $(STAMP) ## results/other-nets.md: the same of nets and boards of other kinds, 60 s each (half an hour)
	$(BIN)/python tests/benchmarks/small_ram.py --table other $(OTHER_NETS)

bench-other-searches: $(STAMP) ## results/other-searches.md: the published problems, concats, a step of 10,000 ops, random problems beside exhaustive search, 60 s each (an hour; goes on where it was)
	$(BIN)/python tests/benchmarks/other_searches.py $(OTHER_SEARCHES)

language-model: $(STAMP) ## results/language-model.md: adapters of a decoder of 494 M parameters in 256 MiB, planned, verified, tried under --enforce (half an hour, 8 GB of RAM and storage)
	$(BIN)/python examples/language_model.py

bench-layout: $(STAMP) ## how well plans fill their arenas: fixed places, CP-SAT, moves; eleven instances of minimalloc (five minutes)
	$(BIN)/python tests/benchmarks/layouts.py

devices-table: $(STAMP) ## results/devices-table.md and devices-published.md: profiles against published steps, storage, energies (a minute)
	$(BIN)/python tests/benchmarks/devices_table.py
	$(BIN)/python tests/benchmarks/published_table.py

calibration-table: $(STAMP) ## results/calibration-table.md: this machine calibrated, against nets in no fit (ten minutes)
	$(BIN)/python tests/benchmarks/calibration_table.py

robust-table: $(STAMP) ## results/robust-table.md: the plan of least largest regret against that of the stated figures (ten minutes)
	$(BIN)/python tests/benchmarks/robust_table.py

fuzz: $(STAMP) ## 20,000 mutated files of each of seven kinds: refused or used, nothing else (long)
	PYTHONPATH=tests $(BIN)/python tests/tools/fuzz.py

faults-table: $(STAMP) ## results/runtime-safety.md: what storage can do to a run, and what is left
	PYTHONPATH=tests $(BIN)/python tests/tools/faults.py --write

runtime-table: $(STAMP) ## results/runtime.md: predicted and measured peaks, step times (long; goes on where it was)
	$(BIN)/python tests/benchmarks/runtime_table.py

peaks-table: $(STAMP) ## results/rising-peaks.md: measured peaks of three nets at twenty rising budgets (half an hour; goes on where it was)
	PYTHONPATH=examples $(BIN)/python tests/benchmarks/rising_peaks.py

torch-peers: $(STAMP) ## against checkpointing and torch's memory budget, at their own peaks
	PYTHONPATH=examples $(BIN)/python tests/benchmarks/torch_peers.py

torch-solver: $(STAMP) ## results/torch-solver.md: poet.torch_solver beside torch's own solvers, 6 nets x 10 budgets, measured peak and time (half an hour)
	PYTHONPATH=examples $(BIN)/python tests/benchmarks/torch_solver.py --write $(TORCH_SOLVER)

bits-table: $(STAMP) ## results/bits-table.md: nets x losses x optimizers x what is done beside, against the plain loop (two hours; goes on where it was; BITS='--most 100')
	$(BIN)/python tests/benchmarks/bits.py --write $(BITS)

stream-table: $(STAMP) ## results/stream-of-shapes.md: 500 steps of mixed lengths, planned between steps (ten minutes)
	$(BIN)/python tests/benchmarks/stream.py --write

shape-bytes-table: $(STAMP) ## results/shape-bytes.md: what other shapes take, foreseen and exact, and the largest that fits (one minute)
	$(BIN)/python tests/benchmarks/shape_bytes.py --write

micro-table: $(STAMP) ## results/micro-batches.md: a ViT in little RAM and a BERT in storage, in k pieces (ten minutes)
	PYTHONPATH=examples $(BIN)/python tests/benchmarks/micro_batches.py --write $(MICRO)

arenas-table: $(STAMP) ## results/arenas.md: arenas of whole nets beside the peaks and energies of their searches (half an hour; goes on where it was)
	PYTHONPATH=examples $(BIN)/python tests/benchmarks/arenas.py

time-table: $(STAMP) ## results/least-time.md: plans of least time at shares of the activation memory, 17 nets; steps, imports (an hour; goes on where it was)
	PYTHONPATH=examples:tests $(BIN)/python tests/benchmarks/time_table.py $(TIME_TABLE)

demo-c: $(STAMP) ## ResNet-8 as C99: planned, exported, linked into its RAM, trained here and on a Cortex-M4F in QEMU
	$(BIN)/python examples/demo_c.py

c99-table: $(STAMP) ## results/c99-table.md: the MLPerf Tiny nets as C99, kept and in their budgets, in QEMU (ten minutes)
	$(BIN)/python tests/benchmarks/c99_table.py

c99-library-table: $(STAMP) ## results/c99-library.md: steps of five nets by shared library and in PyTorch, time and memory (a few minutes)
	$(BIN)/python tests/benchmarks/c99_library.py

c99-numbers-table: $(STAMP) ## results/c99-numbers.md: exported C against float64 beside PyTorch, 100 steps of nine nets (ten minutes)
	PYTHONPATH=tests:examples $(BIN)/python tests/benchmarks/c99_numbers.py $(NUMBERS)

c99-operators-table: $(STAMP) ## results/c99-operators.md: each C operator's error beside PyTorch's, over random nets (five minutes)
	PYTHONPATH=tests:examples $(BIN)/python tests/benchmarks/c99_operators.py

test-cortex-m: $(STAMP) ## exported C on a Cortex-M4F in QEMU (apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm)
	@command -v arm-none-eabi-gcc qemu-system-arm >/dev/null || { echo "no cross compiler or QEMU here: apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm" >&2; exit 2; }
	$(BIN)/python -m pytest -q -m slow tests/c99 -k cortex_m

pictures: $(STAMP) ## docs/images: what the HTML reports look like, in Chromium (apt-get install chromium chromium-driver)
	@command -v chromium chromedriver >/dev/null || { echo "no browser here: apt-get install chromium chromium-driver" >&2; exit 2; }
	POET_PICTURES=docs/images $(BIN)/python -m pytest -q -m '' tests/report/test_html_browser.py -k pictures

documents: $(STAMP) ## the outputs on the pages, made anew by running their commands (long)
	$(BIN)/python tests/tools/documents.py --write

reference: $(STAMP) ## docs/commands.md, api.md and operators.md, made of the code
	$(BIN)/python tests/tools/reference.py --write

site: $(STAMP) ## the documentation as a searchable site in build/site, strict about links
	$(BIN)/python -m pip install --quiet --constraint constraints.txt zensical
	$(BIN)/zensical build --strict

clean: ## what the targets above made, the virtual environment included
	rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
