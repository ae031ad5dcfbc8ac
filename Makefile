# Everything that is run by hand or by CI. `make help` lists it.

PYTHON ?= python3.11
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --jobs=2
# Tests start thousands of Python processes; where this is set, each would compile hopsml anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.complete
NATIVE := .cache/native/built
COMPILED := .cache/compiled
REQUIREMENTS := requirements/dev.txt requirements/uv.txt
CHAOS_RESULTS := benchmarks/results/chaos.json
CHAOS_ROUNDS ?= 1
SOAK_MINUTES ?= 10
SOAK ?=
CHAOS_OVER ?= hopsml tensorflow
CHAOS_PARTS ?= local fit torch spark torch-spark yarn torch-yarn drain network
CHECKED := hopsml tools tests conf airflow_dags benchmarks
BENCH ?=
STUDIES ?= all
NEEDS := $(BIN)/python tools/setup_environment.py --needs
MUTANTS ?=

.PHONY: help setup tf-hdfs airflow lock lint types style docs test-fast test test-all bench studies chaos features soak mutants hadoop-up hadoop-down wheel demo demo-yarn demo-service clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

$(STAMP): $(REQUIREMENTS) setup.py
	@command -v $(PYTHON) > /dev/null || { echo "setup: $(PYTHON) is missing: install Python 3.11 with its venv module" \
	    "(apt-get install python3.11-venv, or uv python install 3.11), or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) tools/setup_environment.py $@ $^

# What C++ there is; without a compiler a line says what is lost, once here, and each time in `make setup`.
$(NATIVE): $(wildcard native/*/*) tools/build_native.py tools/build_spark_push.py | $(STAMP)
	@$(BIN)/python -m tools.build_spark_push
	@$(BIN)/python -m tools.build_native --stamp $@

setup: $(STAMP)  ## .venv with everything that is pinned in requirements/, this project, and its native library
	@$(BIN)/python -m tools.build_native
	@$(BIN)/python -m tools.build_spark_push
	@$(NEEDS) java mvn || true

tf-hdfs: $(STAMP)  ## TensorFlow's file system for hdfs://, of native/tf_hdfs, with Rust; up to three minutes the first time
	@$(BIN)/python -m tools.build_tf_hdfs

airflow: $(STAMP)  ## .cache/airflow/venv: Airflow as requirements/airflow.txt pins it; tests make it, too
	@$(BIN)/python -m tools.airflow_environment

lock: $(STAMP)  ## pin requirements/*.in anew
	@$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --output-file .cache/dev.txt requirements/dev.in
	@grep -hv '^#' requirements/no-deps.txt | cat .cache/dev.txt - > requirements/dev.txt
	@$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --output-file requirements/airflow.txt requirements/airflow.in
	@git diff --stat -- requirements

lint: types style  ## ruff, mypy --strict, vulture, the layers of imports, no circle of files, and plain wording
	@echo "lint: ruff, mypy, import-linter, vulture, plain_words and the check for circles found nothing"

types: $(STAMP)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary --strict tools benchmarks conf/discover_gpus.py

style: $(STAMP)
	@$(BIN)/ruff check --quiet $(CHECKED)
	@$(BIN)/ruff format --check --quiet $(CHECKED)
	@$(BIN)/lint-imports --config pyproject.toml > .cache/lint-imports.log || { cat .cache/lint-imports.log; exit 1; }
	@$(BIN)/python -m tools.import_circles
	@$(BIN)/vulture
	@$(BIN)/python -m tools.plain_words > .cache/plain-words.log || { cat .cache/plain-words.log; exit 1; }

# In a clone that is new, once: else each process of pytest would compile all of hopsml and of its tests.
$(COMPILED): | $(STAMP) $(NATIVE)
	@$(BIN)/python -m pytest -q -m fast --collect-only > $@.part || { cat $@.part; exit 1; }
	@mv $@.part $@

docs: $(STAMP)  ## the site in .cache/site, strict: a page, a name or a link that is missing is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: .cache/site/index.html"

# Arrays of these tests are small: a second thread of BLAS would spin for nothing, on a processor that other tests want.
FAST := OPENBLAS_NUM_THREADS=1

# Each of three begins with a third of the files, in order: what a file's tests share is made once, not four times.
test-fast: $(COMPILED) $(NATIVE)  ## what decides, and what starts little: no agents, no Spark, no Hadoop, no TensorFlow; a minute
	@$(FAST) $(BIN)/python -m pytest -q -m "fast and not variant" -n 3 --dist worksteal

# The same examples of hypothesis each time; test-fast and test-all look for new ones.
SAME := --hypothesis-profile=ci

# The rest runs four at a time, on two cores: two of them wait most of the time. Who shares a cluster stays in one process
# (tests/side_by_side.py). Where one of the four crashes the others end, too: they would wait for its tests for ever.
SIDE_BY_SIDE = -n $(AT_ONCE) --dist loadgroup --max-worker-restart=0 --durations=20 --durations-min=5
AT_ONCE := 4
test-all: AT_ONCE := 3

test: lint $(COMPILED) $(NATIVE)  ## everything but variants: fast; then hadoop, spark, tensorflow, airflow and the rest side by side
	@status=0; $(FAST) $(BIN)/python -m pytest -q $(SAME) -m "fast and not variant" -n 3 --dist worksteal || status=$$?; \
	    $(BIN)/python -m pytest -q $(SAME) -m "not fast and not variant" $(SIDE_BY_SIDE) || status=$$?; exit $$status

# Airflow's come last, alone: its own deadlines, two seconds for a task among them, do not hold beside others.
test-all: lint $(COMPILED) $(NATIVE)  ## and the variants: what is said of one backend, said of each; two closing lines
	@$(BIN)/python -m tools.build_tf_hdfs --if-possible
	@status=0; $(BIN)/python -m pytest -q -m "not airflow" $(SIDE_BY_SIDE) || status=$$?; \
	    $(BIN)/python -m pytest -q -m airflow --durations=10 --durations-min=5 || status=$$?; exit $$status

bench: $(STAMP) $(NATIVE)  ## every figure beside the peers', as a table and .cache/bench/figures.json; BENCH=--quick for a first look
	@$(BIN)/python -m benchmarks all --json .cache/bench/figures.json $(BENCH)

studies: $(STAMP) $(NATIVE)  ## what becomes of accuracy: JSON and pictures in benchmarks/results/studies; STUDIES="accuracy resizing" so much of it
	@$(BIN)/python -m benchmarks.studies $(STUDIES)

chaos: $(STAMP) $(NATIVE)  ## do harm to trainings here, on Spark, on YARN; benchmarks/results/chaos.{md,json}; CHAOS_ROUNDS=3 plays all thrice, CHAOS_OVER=tensorflow or hopsml over these collectives alone, CHAOS_PARTS="local spark" so much of it
	@$(BIN)/python -m tests.chaos --over $(CHAOS_OVER) --parts $(CHAOS_PARTS) --rounds $(CHAOS_ROUNDS) $(CHAOS_RESULTS)

soak: $(STAMP) $(NATIVE)  ## jobs, runs, views and recoveries over and over, and what grows with them, as one line of JSON; SOAK_MINUTES=120 for longer, SOAK="--parts service" so much of it
	@$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) $(SOAK)

features: $(STAMP) $(NATIVE)  ## one process against workers, feature by feature: docs/features.md, one closing line of JSON
	@$(BIN)/python -m tools.features

mutants: $(STAMP)  ## mutation tests of the pure modules, a sample of 600; benchmarks/results/mutants.md; MUTANTS=all for every mutant, MUTANTS="--sample 1200 --seed 7"
	@$(BIN)/python -m tools.mutants $(MUTANTS)

hadoop-up: $(STAMP)  ## a real HDFS and YARN on this machine; runs until hadoop-down
	@$(NEEDS) java mvn
	@$(BIN)/python -m tools.hadoop start

hadoop-down: $(STAMP)  ## end it and delete its files
	@$(BIN)/python -m tools.hadoop stop --remove

wheel: $(STAMP) $(NATIVE)  ## dist/hopsml-*.whl for machines of this kind: hopsml, its native libraries for the TensorFlow of .venv, and TensorFlow's hdfs:// where there is Rust
	@rm -rf build dist/hopsml-*.whl
	@$(BIN)/python -m tools.build_tf_hdfs --if-possible
	@$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python

demo: $(STAMP) $(NATIVE)  ## train on two Spark executors on this machine
	@$(NEEDS) java
	@$(BIN)/python -m tools.demo

demo-yarn: $(STAMP) $(NATIVE)  ## the same by spark-submit on a real YARN with HDFS, which is started and stopped
	@$(NEEDS) java mvn
	@$(BIN)/python -m tools.demo_yarn

demo-service: $(STAMP) $(NATIVE)  ## the job service on a real YARN: jobs, a kill -9 in the middle, and what came of it
	@$(NEEDS) java mvn
	@$(BIN)/python -m tools.demo_service

clean:  ## end the local Hadoop, delete the environment and everything that was built or fetched
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m tools.hadoop stop --now --remove; fi
	@rm -rf .venv .cache mutants build dist hopsml/collective/lib hopsml/training/tensorflow/lib hopsml/training/data/lib *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
