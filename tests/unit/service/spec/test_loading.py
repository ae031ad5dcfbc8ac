"""Tests of valid job files, and of every mistake with its message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError, JobFileError
from hopsml.service import spec
from hopsml.service.spec.job import Size, largest_size, least_size
from hopsml.service.spec.job import size_of_driver as driver_size
from tests.unit.service.spec.examples import SMALL, WHOLE


def test_job_size_includes_drivers() -> None:
    job = spec.loads(WHOLE)
    driver = 1024 + 384
    assert least_size(job) == Size(3, 2 * 4 + 1 + 2, 2, 2 * 16384 + 4096 + 2 * driver)
    assert largest_size(job) == Size(9, 8 * 4 + 1 + 2, 8, 8 * 16384 + 4096 + 2 * driver)
    assert driver_size(10_000) == Size(0, 1, 0, 11_000)


def test_summary_line_of_a_job() -> None:
    assert spec.summary(spec.loads(WHOLE)) == (
        "digits: 2 tasks (train 2 to 8, evaluate 1), 3 to 9 slots, 2 to 8 GPUs, 11 to 35 cores and 38.8 to 134.8 GiB with 2 "
        "drivers"
    )
    assert spec.summary(spec.loads(SMALL)) == (
        "small: 1 task (train 1), 1 slot, 0 GPUs, 2 cores and 2.4 GiB with its driver"
    )


pytestmark = pytest.mark.fast


def problems(text: str | bytes) -> list[str]:
    """Return all problems of a file."""
    with pytest.raises(JobFileError) as refused:
        spec.loads(text)
    assert isinstance(refused.value, ArgumentError) and str(refused.value) == "\n".join(refused.value.problems)
    return list(refused.value.problems)


def problem(text: str | bytes) -> str:
    """Return the single problem of a file."""
    (found,) = problems(text)
    return found


def with_task(fields: str) -> str:
    """Return a job file whose only task has the given fields."""
    return f"name: small\ntasks:\n  train: {{{fields}}}\n"


def test_complete_job_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(WHOLE)
    job = spec.load(path)
    train, evaluate = job.tasks["train"], job.tasks["evaluate"]
    assert (train.fewest, train.most, train.resources.memory_mib, train.resources.gpus) == (2, 8, 16384, 1)
    assert (evaluate.fewest, evaluate.most, evaluate.command) == (1, 1, ("python", "evaluate.py"))
    assert (job.time_limit_s, job.priority, job.queue, job.schedule) == (7200, 80, "research", "0 3 * * *")
    assert job.search is not None and job.searched() == "train" and job.search.space == {"lr": [1e-4, 0.1, "log"]}


def test_omitted_fields_have_defaults() -> None:
    job = spec.loads(SMALL)
    assert (job.queue, job.priority, job.retries, job.code, job.workspace, job.secrets) == (
        "default",
        50,
        0,
        ".",
        False,
        (),
    )
    task = job.tasks["train"]
    assert (task.fewest, task.most, task.restart, task.resources.memory_mib) == (1, 1, "end_all", 1024)
    with pytest.raises(ValueError, match="has no search block"):
        job.searched()


def test_job_spec_is_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        spec.loads(SMALL).priority = 3  # type: ignore[misc]


def test_all_problems_are_reported_in_the_order_of_their_lines() -> None:
    found = problems(
        "name: Digits\nprioritty: 3\npriority: 500\nretries: 1\nretries: 2\ntasks:\n  train:\n    count: 0\n"
        "    script: train.py\n    resources: {memory: 16}\n"
    )
    assert found == [
        'job.yaml:1: name: "Digits": a name has 1 to 63 lower-case letters, digits and hyphens, a letter or digit at both '
        "ends: write train-2",
        "job.yaml:2: prioritty: unknown field: did you mean priority?",
        "job.yaml:3: priority: 500: it must be at most 100: write, for instance, priority: 80",
        "job.yaml:5: retries: it stands there twice, first in line 4: remove one of them",
        "job.yaml:8: tasks.train.count: 0: it must be at least 1: write, for instance, count: 8",
        "job.yaml:10: tasks.train.resources.memory: 16: memory is a whole number with a unit, m (MiB), g (GiB) or t (TiB): "
        "write 512m or 16g",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks: {a: {script: a.py}}", 'name: it is missing: write, for instance, name: "digits"'),
        ("name: a", "tasks: it is missing: write, for instance, tasks: "),
        ("name: a\ntasks: {}", "tasks: it must have at least 1: write, for instance"),
        ("name: a\ntasks: [b]", "it must be a table of names and values"),
        ("name: a\ntasks: {b: c}", 'tasks.b: "c": it must be a table of fields'),
        ("- a", "a job file is a table of fields, such as name and tasks: write name: digits"),
        ("hello", "a job file is a table of fields"),
        (SMALL + "priority: '3'", 'priority: "3": it must be a whole number: write, for instance, priority: 80'),
        (SMALL + "priority: 1.5", "priority: 1.5: it must be a whole number"),
        (SMALL + "priority: true", "priority: true: it must be a whole number"),
        (SMALL + "retries: 101", "retries: 101: it must be at most 100"),
        (SMALL + "dataset: data/x", 'dataset: "data/x": it does not have the right form: write, for'),
        (SMALL + "time_limit: 2", "time_limit: 2: a duration is a whole number with a unit"),
        (SMALL + "time_limit: 400d", 'time_limit: "400d": a duration is at most 366d: leave it out for no limit'),
        (SMALL + "secrets: s3", 'secrets: "s3": it must be a list: write, for instance, secrets: ["s3-key"]'),
        (SMALL + "secrets: [a, a]", "secrets: a stands there twice: name each once"),
        (SMALL + "labels: {'a b': c}", "labels.a b: \"a b\": a label has 1 to 63 letters, digits"),
        (SMALL + "labels: {a: 1}", "labels.a: 1: it must be text, in quotes where it looks like a number"),
        (SMALL + "schedule: daily", 'schedule: "daily": a schedule has cron\'s five fields'),
        (SMALL + "schedule: '@daily'", "a schedule has cron's five fields"),
        (SMALL + "schedule: 0 3 * * * *", "a schedule has cron's five fields"),
        (SMALL + "schedule: 99 3 * * *", '"99 3 * * *": minute 99 is not in 0 to 59; correct the minute'),
        (SMALL + "schedule: 0 0 31 2 *", "no day of the calendar is on this schedule: change its day or its month"),
        (SMALL + "algorithm: x", "algorithm: unknown field: there are: name, description, labels,"),
        (with_task("script: a.py, run: x"), "tasks.train.run: unknown field; here it is command"),
        (with_task("script: a.py, scripts: x"), "tasks.train.scripts: unknown field: did you mean script?"),
        (with_task("count: 1"), "tasks.train: a task has exactly one of function, command and script: leave the others out"),
        (with_task("script: a.py, command: [b]"), "a task has exactly one of function, command and script"),
        (with_task("script: a.sh"), 'tasks.train.script: "a.sh": it does not have the right form'),
        (with_task("function: 'a.py'"), "tasks.train.function: \"a.py\": it does not have the right form: write"),
        (with_task("command: []"), "tasks.train.command: it must have at least 1"),
        (with_task("command: [a], arguments: {b: 1}"), "a command has its arguments in it"),
        (with_task("script: a.py, min: 2"), "min and max go together: write both, or count for a fixed number"),
        (with_task("script: a.py, min: 3, max: 2"), "tasks.train: min 3 is above max 2: swap them"),
        (with_task("script: a.py, count: 2, min: 1, max: 2"), "count and min, max exclude each other"),
        (with_task("script: a.py, count: 100001"), "count: 100001: it must be at most 100000"),
        (with_task("script: a.py, restart: endall"), "it must be one of 'end_all' or 'relaunch'; did you mean end_all?"),
        (with_task("script: a.py, env: {1A: b}"), "a variable's name has letters, digits and '_', and no digit in front"),
        (with_task("script: a.py, env: {A: 1.10}"), "tasks.train.env.A: 1.1: it must be text, in quotes"),
        (with_task("script: a.py, env: {A: yes, B: true}"), "tasks.train.env.B: true: it must be text"),
        (
            with_task("script: a.py, env: {AWS_SECRET_ACCESS_KEY: b}"),
            "looks like a secret, and job files are readable by other users",
        ),
        (with_task("script: a.py, env: {HOPSML_TASK_A_ADDRESSES: b}"), "is set by hopsml, so that tasks find one another"),
        (with_task("script: a.py, ports: [a, a]"), "tasks.train.ports: a stands there twice"),
        (with_task("script: a.py, ports: [1]"), "tasks.train.ports[0]: 1: it must be text"),
        (with_task("script: ../a.py"), '"../a.py": it lies outside of the code, and only what is in it travels'),
        (with_task("function: /etc/a.py:main"), "tasks.train.function: \"/etc/a.py:main\": it lies outside"),
        (with_task("function: b/../../a.py:main"), "it lies outside of the code"),
        (with_task("script: a.py, environment: {}"), "an environment has exactly one of packages, archive and image"),
        (with_task("script: a.py, environment: {archive: a}"), "environment.archive: \"a\": it does not have the right"),
        (with_task("script: a.py, resources: {gpu: 1}"), "tasks.train.resources.gpu: unknown field; here it is gpus"),
        (with_task("script: a.py, resources: {memory: 65t}"), '"65t": a worker has at most 64t; request less'),
        (SMALL.replace("train:", "Train_1:"), 'tasks.Train_1: "Train_1": a name has 1 to 63 lower-case letters'),
        (SMALL.replace("train:", f"{'a' * 64}:"), "a name has 1 to 63 lower-case letters"),
        (SMALL.replace("train:", "1:"), 'tasks: 1 as a field\'s name: a name is text: write "1" in quotes'),
        (SMALL + "search: {space: {lr: [0.1, 0.01]}}", "the lower bound 0.1 of DOUBLE is not less than the"),
        (SMALL + "search: {space: {lr: [0, 1, log]}}", "the lower bound 0 of LOGINTEGER must be greater than 0"),
        (
            "name: a\ntasks: {main: {function: a.py:b, count: 2}}\nsearch: {space: {lr: [0, 1]}, workers_per_trial: 3}\n",
            "search.workers_per_trial is 3, and the task may have only 2 workers",
        ),
        (with_task("script: a.py, ends_with: train"), "task 'train' ends with 'train', which is no task that"),
        (
            "name: a\ntasks:\n  train: {script: a.py}\n  ps: {script: a.py, ends_with: trian}\n",
            "task 'ps' ends with 'trian', which is no task that ends by itself; did you mean",
        ),
        (with_task("script: a.py, framework: mpi"), "framework: mpi starts a command of a fixed count of processes"),
        (with_task("command: [a], framework: mpi, min: 1, max: 2"), "framework: mpi starts a command of a fixed count"),
        (SMALL + "datasets: {Digits: hdfs:///a}\n", 'datasets.Digits: "Digits": a name has 1 to 63 lower-case letters'),
        (SMALL + "datasets: {digits: data/a}\n", "datasets.digits.url: \"data/a\": it must be a URL or an absolute path"),
        (SMALL + "datasets: {digits: hdfs:///a/../b}\n", "it must be a URL or an absolute path"),
        (SMALL + "datasets: {digits: {url: hdfs:///a, fetch: cpy}}\n", "did you mean copy?"),
        (
            "name: a\ndatasets: {digits: hdfs:///a}\ntasks: {b: {script: a.py, env: {HOPSML_DATASET_DIGITS: c}}}\n",
            "HOPSML_DATASET_DIGITS is set by hopsml: remove it from env of task 'b'",
        ),
        (
            "name: a\nworkspace: true\ntasks: {b: {script: a.py, env: {HOPSML_WORKSPACE: c}}}\n",
            "HOPSML_WORKSPACE is set by hopsml: remove it",
        ),
        (SMALL + "workspace: https://host/repo.git\n", "jobs cannot write there; the git URL of the code stands under code"),
        (SMALL + "code: .\nworkspace: shared\n", "workspace: 'shared': it must be true, a URL or an absolute path"),
        (SMALL + "search: {space: {lr: 3}}", "search: space: lr=3: it must be (type, region)"),
        (SMALL + "search: {space: {}}", "search.space: it must have at least 1"),
        (SMALL + "search: {space: {lr: [0, 1]}}", "the search tries the function of one task, and search.task is left out"),
        (SMALL + "search: {space: {lr: [0, 1]}, searcher: rnadom}", "did you mean random?"),
        (SMALL + "search: {space: {lr: [0, 1]}, trials: 3}", "search.trials: unknown field; here it is num_trials"),
    ],
)  # fmt: skip
def test_invalid_value_is_explained(text: str, words: str) -> None:
    found = problem(text)
    assert words in found and found.startswith("job.yaml:"), found


def test_too_many_workers_tasks_or_secrets_are_refused() -> None:
    many = "name: a\ntasks:\n" + "".join(f"  t{n}: {{script: a.py, count: 60000}}\n" for n in range(2))
    assert "tasks ask for 120000 workers in all; a job has at most 100000; request fewer" in problem(many)
    many = "name: a\ntasks:\n" + "".join(f"  t{n}: {{script: a.py}}\n" for n in range(10_000))
    assert problem(many) == "job.yaml:1003: tasks: more than 1000 are given, and no more are allowed; request fewer"
    many = SMALL + "secrets: [" + ",".join(f"s{n}" for n in range(65)) + "]"
    assert problem(many).endswith("secrets: 65 are given; at most 64 are allowed; request fewer")


def test_search_must_name_its_task_if_several_have_a_function() -> None:
    text = "name: a\ntasks: {b: {function: 'b.py:f'}, c: {function: 'c.py:f'}}\nsearch: {space: {x: [0, 1]}"
    assert "name one that has a function; there are: b, c" in problem(text + "}")
    assert "search.task is d" in problem(text + ", task: d}")
    assert spec.loads(text + ", task: c}").searched() == "c"


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "no.yaml", "No such file"), (tmp_path, "Is a directory"), ("a\0b", "null byte")):
        with pytest.raises(JobFileError, match=words):
            spec.load(path)


def test_number_of_reported_problems_is_bounded() -> None:
    found = problems(SMALL + "".join(f"x{n}: 1\n" for n in range(300)))
    assert len(found) == 101 and found[-1] == "job.yaml: and 200 more"


def test_problem_text_does_not_show_a_secret() -> None:
    assert "hunter2hunter2" not in problem(SMALL + "dataset: {password: hunter2hunter2}")


@pytest.mark.parametrize("letter", [",", "#", "%", "?", "*", "[", "{", ":", "\\\\", '\\"', "\\n", "\\t", "\\x7f"])
def test_path_and_image_names_with_special_characters_are_refused(letter: str) -> None:
    for field in (
        f'script: "a{letter}/etc/b.py"',
        f'function: "a{letter}/etc/b.py:main"',
        f'script: a.py, environment: {{archive: "hdfs:///a{letter}b.tar.gz"}}',
        f'script: a.py, environment: {{packages: "a{letter}b.txt"}}',
        f'script: a.py, environment: {{image: "a{letter if letter != ":" else " "}b"}}',
    ):
        if letter == ":" and "archive" in field:
            continue  # a URL's port
        with pytest.raises(JobFileError, match=r"it does not have the right form|the character U"):
            spec.loads(with_task(field))


@pytest.mark.parametrize(
    "field",
    [
        "{archive: hdfs:///environments/../Projects/a.tar.gz}",
        "{archive: hdfs:///environments/./a.tar.gz}",
        "{packages: ../a.txt}",
        "{packages: /etc/passwd}",
        "{image: --privileged}",
    ],
)
def test_environment_outside_its_folder_is_refused(field: str) -> None:
    with pytest.raises(JobFileError):
        spec.loads(with_task(f"script: a.py, environment: {field}"))


def test_script_names_with_unicode_and_spaces_are_accepted() -> None:
    for named in ("süß/обучение 2.py", "a+b=c@d~(1)'.py"):
        assert spec.loads(with_task(f'script: "{named}"')).tasks["train"].script == named


def test_pipe_in_place_of_a_job_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.yaml")
    with pytest.raises(JobFileError, match="not a regular file"):
        spec.load(tmp_path / "job.yaml")
