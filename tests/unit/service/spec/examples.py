"""Job files for tests."""

SMALL = "name: small\ntasks:\n  train: {script: train.py}\n"
WHOLE = """
name: digits
labels: {team: vision}
queue: research
priority: 80
time_limit: 2h
dataset: hdfs:///data/digits
code: .
retries: 1
tasks:
  train:
    min: 2
    max: 8
    resources: {cores: 4, memory: 16g, gpus: 1, node_label: v100}
    function: train.py:main
    arguments: {batch_size: 64}
    environment: {image: "hopsml:1"}
    env: {NAME: value}
    ports: [tensorboard]
    restart: relaunch
  evaluate:
    count: 1
    resources: {cores: 1, memory: 4g}
    command: [python, evaluate.py]
search:
  space: {lr: [1e-4, 1e-1, log]}
  searcher: random
  num_trials: 20
  metric: accuracy
  direction: max
schedule: "0 3 * * *"
secrets: [s3-key]
profile: yarn
"""
