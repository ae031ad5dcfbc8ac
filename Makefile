# Commands for developers and CI. `make help` lists them.

PYTHON ?= python3.11
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --jobs=2
# Tests start thousands of Python processes; with this variable each of them would compile hopsml again.
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
MINUTES ?= 1
TARGETS ?=
NOTEBOOKS ?=
CELLS ?=
RELEASES ?=
ARCH ?=

.PHONY: help setup tf-hdfs airflow lock lint types style docs test-fast test test-all test-secure bench studies mission chaos features matrix hadoop-versions soak mutants fuzz hadoop-up hadoop-down wheel release demo demo-yarn demo-service clean

help:  ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

$(STAMP): $(REQUIREMENTS) setup.py
	@command -v $(PYTHON) > /dev/null || { echo "setup: $(PYTHON) is missing: install Python 3.11 with its venv module" \
	    "(apt-get install python3.11-venv, or uv python install 3.11), or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) tools/setup_environment.py $@ $^

# The C++ libraries. Without a compiler a line names what is missing: once here, and each time in `make setup`.
$(NATIVE): $(wildcard native/*/*) tools/build_native.py tools/build_spark_push.py | $(STAMP)
	@$(BIN)/python -m tools.build_spark_push
	@$(BIN)/python -m tools.build_native --stamp $@

setup: $(STAMP)  ## create .venv with the packages pinned in requirements/, this project, and its native libraries
	@$(BIN)/python -m tools.build_native
	@$(BIN)/python -m tools.build_spark_push
	@$(NEEDS) java mvn || true

tf-hdfs: $(STAMP)  ## build TensorFlow's file system for hdfs:// (native/tf_hdfs) with Rust; up to three minutes the first time
	@$(BIN)/python -m tools.build_tf_hdfs

airflow: $(STAMP)  ## create .cache/airflow/venv with the Airflow pinned in requirements/airflow.txt; the tests do so, too
	@$(BIN)/python -m tools.airflow_environment

lock: $(STAMP)  ## update the pinned versions of requirements/*.in
	@$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --output-file .cache/dev.txt requirements/dev.in
	@grep -hv '^#' requirements/no-deps.txt | cat .cache/dev.txt - > requirements/dev.txt
	@$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --output-file requirements/airflow.txt requirements/airflow.in
	@git diff --stat -- requirements

lint: types style  ## run ruff, mypy --strict, vulture, and the checks of import layers, import cycles and plain wording
	@echo "lint: ruff, mypy, import-linter, vulture, plain_words and the check for circles found nothing"

types: $(STAMP)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary --python-version 3.11 --strict tools benchmarks conf/discover_gpus.py

style: $(STAMP)
	@$(BIN)/ruff check --quiet $(CHECKED)
	@$(BIN)/ruff format --check --quiet $(CHECKED)
	@$(BIN)/lint-imports --config pyproject.toml > .cache/lint-imports.log || { cat .cache/lint-imports.log; exit 1; }
	@$(BIN)/python -m tools.import_circles
	@$(BIN)/vulture
	@$(BIN)/python -m tools.plain_words > .cache/plain-words.log || { cat .cache/plain-words.log; exit 1; }

# Once in a new clone: otherwise each process of pytest would compile hopsml and its tests.
$(COMPILED): | $(STAMP) $(NATIVE)
	@$(BIN)/python -m pytest -q -m fast --collect-only > $@.part || { cat $@.part; exit 1; }
	@mv $@.part $@

docs: $(STAMP) $(NATIVE)  ## run changed notebooks (needs Java), and build the site in .cache/site; a missing page or link is an error; NOTEBOOKS=--without-outputs runs none
	@$(BIN)/python -m tools.execute_notebooks $(NOTEBOOKS) docs/notebooks
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: .cache/site/index.html"

# Arrays of these tests are small: a second BLAS thread would only take processor time from other tests.
FAST := OPENBLAS_NUM_THREADS=1

# Each of the three processes starts with a third of the files, in order, so that fixtures of a file are created once.
test-fast: $(COMPILED) $(NATIVE)  ## run the fast tests: without agents, Spark, Hadoop and TensorFlow; a minute
	@$(FAST) $(BIN)/python -m pytest -q -m "fast and not variant" -n 3 --dist worksteal

# Hypothesis uses the same examples each time; test-fast and test-all search for new ones.
SAME := --hypothesis-profile=ci

# The other tests run in four processes on two cores, since two of them wait most of the time. Tests that share a cluster
# stay in one process (tests/helpers/side_by_side.py). If one crashes the others end, too: they would wait for its tests forever.
SIDE_BY_SIDE = -n $(AT_ONCE) --dist loadgroup --max-worker-restart=0 --durations=20 --durations-min=5
AT_ONCE := 4
test-all: AT_ONCE := 3

test: lint $(COMPILED) $(NATIVE)  ## run all tests except variants: lint, the fast ones; then hadoop, spark, tensorflow, airflow and others in parallel
	@status=0; $(FAST) $(BIN)/python -m pytest -q $(SAME) -m "fast and not variant" -n 3 --dist worksteal || status=$$?; \
	    $(BIN)/python -m pytest -q $(SAME) -m "not fast and not variant and not secure" $(SIDE_BY_SIDE) || status=$$?; exit $$status

# Airflow's tests run last and alone: its deadlines, such as two seconds for a task, are too short next to other tests.
test-all: lint $(COMPILED) $(NATIVE)  ## run all tests with variants, which repeat tests on each backend, and fuzz for a minute per target; three closing lines
	@$(BIN)/python -m tools.build_tf_hdfs --if-possible
	@rm -rf .cache/test-results; status=0; \
	    $(BIN)/python -m pytest -q -m "not airflow and not secure" $(SIDE_BY_SIDE) --junitxml=.cache/test-results/all.xml || status=$$?; \
	    $(BIN)/python -m pytest -q -m airflow --durations=10 --durations-min=5 --junitxml=.cache/test-results/airflow.xml || status=$$?; \
	    $(BIN)/python -m tools.fuzz --minutes $(MINUTES) --targets "$(TARGETS)" || status=$$?; exit $$status

test-secure: $(STAMP) $(NATIVE)  ## play the scenarios on Kerberized clusters, and print one closing line of JSON; SECURE="-k tokens" selects some
	@$(BIN)/python -m tests.secure $(SECURE)

bench: $(STAMP) $(NATIVE)  ## measure hopsml and its peers: a table and .cache/bench/figures.json; BENCH=--quick for a short run
	@$(BIN)/python -m benchmarks all --json .cache/bench/figures.json $(BENCH)

studies: $(STAMP) $(NATIVE)  ## measure the accuracy of trainings: JSON and pictures in benchmarks/results/studies; STUDIES="accuracy resizing" selects parts
	@$(BIN)/python -m benchmarks.studies $(STUDIES)

chaos: $(STAMP) $(NATIVE)  ## inject failures into trainings on this machine, Spark and YARN; writes benchmarks/results/chaos.{md,json}; CHAOS_ROUNDS=3 repeats all three times, CHAOS_OVER=tensorflow or hopsml selects the collective, CHAOS_PARTS="local spark" selects parts
	@$(BIN)/python -m tests.chaos --over $(CHAOS_OVER) --parts $(CHAOS_PARTS) --rounds $(CHAOS_ROUNDS) $(CHAOS_RESULTS)

soak: $(STAMP) $(NATIVE)  ## repeat jobs, runs, views and recoveries, and print the resources that grow as one line of JSON; SOAK_MINUTES=120 for longer, SOAK="--parts service" selects parts
	@$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) $(SOAK)

mission: $(STAMP)  ## compare docs/mission.md with the results of the last test-all: one closing line of JSON
	@$(BIN)/python -m tools.mission

features: $(STAMP) $(NATIVE)  ## compare one process with several workers, feature by feature: writes docs/features.md, prints one closing line of JSON
	@$(BIN)/python -m tools.features

matrix: $(STAMP) $(NATIVE)  ## run tests/matrix in an environment for each supported combination of versions; CELLS="oldest newest" selects some; one closing line of JSON
	@$(BIN)/python -m tools.version_matrix --cells "$(CELLS)"

hadoop-versions: $(STAMP) $(NATIVE)  ## run tests of HDFS and YARN with Hadoop 3.3.6 and 3.4.1: writes benchmarks/results/hadoop.md; RELEASES="3.3.6" selects some; one closing line of JSON
	@$(NEEDS) java mvn
	@$(BIN)/python -m tools.hadoop_versions --releases "$(RELEASES)"

mutants: $(STAMP)  ## run mutation tests of the pure modules with a random sample of 600; writes benchmarks/results/mutants.md; MUTANTS=all for every mutant, or MUTANTS="--sample 1200 --seed 7"
	@$(BIN)/python -m tools.mutants $(MUTANTS)

fuzz: $(STAMP) $(NATIVE)  ## fuzz the readers of bytes that others write, a minute each: one closing line of JSON; MINUTES=60 for longer, TARGETS="job-file run-records" selects some
	@$(BIN)/python -m tools.fuzz --minutes $(MINUTES) --targets "$(TARGETS)"

hadoop-up: $(STAMP)  ## start HDFS and YARN on this machine, until hadoop-down; HADOOP="--kerberos --spnego" for a Kerberized cluster
	@$(NEEDS) java mvn
	@$(BIN)/python -m tools.hadoop start $(HADOOP)

hadoop-down: $(STAMP)  ## stop HDFS and YARN, and delete their files
	@$(BIN)/python -m tools.hadoop stop --remove

# Needs none of `make setup`: only what a wheel needs is installed, into .cache/wheel/venv.
wheel:  ## build the wheels in dist/: one for Linux (manylinux_2_28) with libraries for each supported TensorFlow, one without compiled code; two minutes, and a download of 1.4 GB the first time; ARCH=aarch64 for another processor
	@command -v $(PYTHON) > /dev/null || { echo "wheel: $(PYTHON) is missing: name one: make wheel PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m tools.build_wheel $(if $(ARCH),--arch $(ARCH))

release: wheel  ## also build the source distribution, SHA-256 checksums and a list of components (CycloneDX) in dist/
	@$(PYTHON) -m tools.release

demo: $(STAMP) $(NATIVE)  ## train on two Spark executors on this machine
	@$(NEEDS) java
	@$(BIN)/python -m tools.demo

demo-yarn: $(STAMP) $(NATIVE)  ## train by spark-submit on YARN with HDFS, which are started and stopped
	@$(NEEDS) java mvn
	@$(BIN)/python -m tools.demo_yarn

demo-service: $(STAMP) $(NATIVE)  ## run the job service on YARN with some jobs, kill it by -9, and print the jobs' results
	@$(NEEDS) java mvn
	@$(BIN)/python -m tools.demo_service

clean:  ## stop the local Hadoop, delete the environment and everything that was built or downloaded
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m tools.hadoop stop --now --remove; fi
	@rm -rf .venv .cache mutants build dist hopsml/collective/lib hopsml/training/tensorflow/lib hopsml/training/data/lib *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
