# `make` or `make help` lists what can be done. Everything else stands under its target's name.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BENCH_VENV := .venv-bench
PEER_VENVS := .venv-peers
BIN := $(VENV)/bin
MODELS := models
COST_TARGET := cpu:x86-64-v3
TIME := 30s
COST_FAMILY := x86-64-v3
COST_DATA = tuning_logs/measurements/$(subst :,-,$(COST_TARGET)).jsonl
IN_PARALLEL := -n logical --maxprocesses 8 --dist worksteal

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test faults coverage lint format models $(MODELS)/bench bench kernels peaks peers cost-data cost-model coverage-table pack curves curves-build dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## Fetch a real model, compile, explain, check against ONNX Runtime, time it
	$(BIN)/python scripts/run.py --into $(MODELS)

test: $(VENV)/.installed ## Run the tests; ARGS="-k softmax" selects some, ARGS="-m slow" the long ones
	$(BIN)/pytest $(IN_PARALLEL) $(ARGS)

faults: $(VENV)/.installed ## Harm tuning stores in every known way, in full; print what became of them
	PYTHONPATH=.:scripts:scripts/bench $(BIN)/python -m faults.store --report scripts/bench/results $(ARGS)
	$(BIN)/python scripts/readme.py

coverage: $(VENV)/.installed ## Run the tests and show the lines that none of them reached
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(IN_PARALLEL) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(VENV)/.installed ## Check style, format, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed ## Format the code and mend what can be mended by rule
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

models: $(VENV)/.installed ## Fetch the real models of scripts/models.toml into models/ (250 MB of downloads)
	$(BIN)/python scripts/fetch_models.py --into $(MODELS)

$(MODELS)/bench: $(MODELS)/bench/.exported

bench: models $(MODELS)/bench/.exported ## Time all benchmark networks against ONNX Runtime; ARGS="--limit 300" stops early
	$(BIN)/python scripts/bench/end_to_end.py --models $(MODELS)/bench --models $(MODELS) $(ARGS)

kernels: $(VENV)/.installed ## Time single kernels beside their peers and the machine's limit
	$(BIN)/python scripts/bench/single_kernels.py --scratch $(PEER_VENVS)/kernels $(ARGS)

peaks: $(VENV)/.installed ## Check the machine's peaks against loops in C
	$(BIN)/python scripts/bench/check_peaks.py $(ARGS)

peers: $(VENV)/.installed $(MODELS)/bench/.exported ## Time three networks beside every peer, each in an environment made for it
	$(BIN)/python scripts/bench/peers.py --models $(MODELS)/bench --scratch $(PEER_VENVS)/models $(ARGS) resnet18 mobilenetv2 bert_base

COLLECT = $(BIN)/python scripts/collect_measurements.py --models $(MODELS) --exported $(MODELS)/bench --jobs 2 --target $(COST_TARGET) \
	--built build/measured/$(COST_TARGET) --into $(COST_DATA)
JUDGES := magika ppocr_cls ppocrv6_det light_densenet121 convnext_tiny

cost-data: models $(MODELS)/bench/.exported ## Build all models under many plans and time their kernels for the cost model; an hour
	$(COLLECT) --sampled 20 $(ARGS) $(JUDGES)
	$(COLLECT) --generated 60 $(ARGS)

cost-model: $(VENV)/.installed ## Train the cost model that ships, of COST_TARGET, and judge it on unseen models
	$(BIN)/tvmfuse cost train --data $(COST_DATA) --target $(COST_TARGET) \
		--split scripts/models.toml --output tvmfuse/cost/models/$(COST_FAMILY).json
	$(BIN)/python scripts/bench/cost_eval.py --data $(COST_DATA) --target $(COST_TARGET)

coverage-table: models $(MODELS)/bench/.exported ## Compile and check every known model; write scripts/bench/results/coverage.*
	$(BIN)/python scripts/bench/coverage_table.py --models $(MODELS) --exported $(MODELS)/bench

PACK := tuning_logs/packs/x86-64-v3.jsonl
PACK_STORE := --db tuning_logs/pack.db

pack: models $(MODELS)/bench/.exported ## Tune what the shipped pack lacks, and write it; NETWORKS="gpt2 resnet18" TIME=5m says what and how long each
	$(BIN)/tvmfuse db import $(PACK) $(PACK_STORE)
	$(BIN)/python scripts/tune_cpu.py \
		$$($(BIN)/python scripts/bench/bind_shapes.py $(NETWORKS) --models $(MODELS)/bench --models $(MODELS) --into build/bound) \
		--target cpu:x86-64-v3 --time $(TIME) --resume $(if $(NETWORKS),--again) $(PACK_STORE) --report scripts/bench/results
	$(BIN)/tvmfuse db pack x86-64-v3 $(PACK_STORE) --output $(PACK)
	$(BIN)/python scripts/readme.py

CURVE := PYTHONPATH=. $(BIN)/python scripts/bench/tuning_curve.py

curves: $(VENV)/.installed $(MODELS)/bench ## Compare the tuner with an exhaustive search and with MetaSchedule (after make peers), 20 minutes; make curves-build first
	$(CURVE) kernels --models $(MODELS)/bench
	$(CURVE) model $(MODELS)/bench/resnet18.onnx --seconds 540 --ours 180 \
		$(addprefix --python ,$(wildcard $(PEER_VENVS)/metaschedule/bin/python))
	$(CURVE) show
	$(BIN)/python scripts/readme.py

curves-build: $(VENV)/.installed $(MODELS)/bench ## Compile what make curves times, which a busy machine may do; 15 minutes
	$(CURVE) kernels --models $(MODELS)/bench --prepare

dist: $(VENV)/.installed ## Build the source archive and the wheel into dist/
	$(BIN)/python -m build

clean: ## Remove what was built, the caches and the environments; fetched models stay
	rm -rf $(VENV) $(BENCH_VENV) $(PEER_VENVS) build dist *.egg-info
	rm -rf .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find tvmfuse tests scripts -name __pycache__ -prune -exec rm -rf {} +

# A stamp is written last, so what was interrupted starts over. An environment is made again when
# what goes into it changes; only the export of the benchmark networks needs the one with torch.
$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(BENCH_VENV)/.installed: scripts/bench/requirements.txt
	$(PYTHON) -m venv --clear $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --requirement $<
	@touch $@

$(MODELS)/bench/.exported: $(BENCH_VENV)/.installed scripts/bench/export_models.py scripts/bench/networks.py
	$(BENCH_VENV)/bin/python scripts/bench/export_models.py --into $(MODELS)/bench
	@touch $@
