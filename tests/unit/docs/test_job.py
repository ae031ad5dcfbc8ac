"""Tests that the page of job files lists exactly the fields of the code, and that its example is valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.service import spec
from hopsml.service.spec import job, limits
from tests.helpers import pages
from tools import job_reference

pytestmark = pytest.mark.fast
PAGE = "docs/reference/job.md"
TORCHX = {
    "AppDef": "name roles metadata",
    "Role": "name image min_replicas base_image entrypoint args env num_replicas max_retries retry_policy resource port_map "
    "metadata mounts",
    "Resource": "cpu gpu memMB capabilities devices",
}
DETERMINED = (
    "bind_mounts checkpoint_policy checkpoint_storage data integrations data_layer debug description entrypoint environment "
    "hyperparameters internal labels log_policies retention_policy max_restarts min_checkpoint_period min_validation_period "
    "name optimizations pbs perform_initial_validation preemption_timeout profiling project records_per_epoch "
    "reproducibility resources scheduling_unit searcher security slurm tensorboard_storage workspace"
)
DETERMINED_RESOURCES = (
    "agent_label devices is_single_node max_slots native_parallel priority resource_pool shm_size slots slots_per_trial "
    "weight"
)
SKYPILOT = (
    "name workdir event_callback num_nodes resources file_mounts service pool setup run envs secrets managed_secrets inputs "
    "outputs file_mounts_mapping config volumes volume_mounts api_server_access _metadata"
)
SKYPILOT_RESOURCES = (
    "cloud region zone infra cpus memory accelerators instance_type use_spot job_recovery volumes disk_size "
    "ephemeral_storage disk_tier network_tier local_disk max_hourly_cost ports labels"
)


def documented_fields(launcher: str) -> set[str]:
    """Fields in the first column of a launcher's table."""
    part = pages.text(PAGE).partition(f"\n### {launcher}\n")[2].partition("\n### ")[0]
    return {name for line in part.splitlines() if line.startswith("| `") for name in pages.names(line.split("|")[1])}


def test_job_reference_lists_the_fields_of_the_code() -> None:
    part = pages.text(PAGE).partition(job_reference.BEGIN)[2].partition(job_reference.END)[0]
    assert part.strip() == job_reference.tables().strip(), "python -m tools.job_reference"


def test_job_reference_example_is_valid(tmp_path: Path) -> None:
    (example,) = [one for one in pages.text(PAGE).split("```") if one.startswith("yaml ")]
    job = spec.loads(example.partition("\n")[2])
    assert set(job.tasks) == {"train", "evaluate"} and job.profile == "yarn"


def test_readme_job_file_is_valid_and_its_function_exists() -> None:
    (example,) = pages.snippets("README.md", "yaml")
    job = spec.loads(example)
    train = job.tasks["train"]
    file, _, function = str(train.function).partition(":")
    assert (train.min, train.max, job.queue, job.retries) == (2, 8, "research", 2)
    assert f"\ndef {function}(" in (pages.ROOT / "spark_jobs" / file).read_text()


def test_documented_task_addresses_are_those_of_a_real_test() -> None:
    """The calls are those of the tasks that a real service runs in that test."""
    (snippet,) = pages.snippets(PAGE)
    played = (pages.ROOT / "tests" / "integration" / "service" / "test_job_parts.py").read_text()
    for words in (
        'hopsml.distributed.host(), int(os.environ["HOPSML_PORT_',
        'hopsml.job.addresses("server", timeout_s=',
    ):
        assert words in snippet and words in played, words


def test_documented_limits_equal_those_of_the_code() -> None:
    text = " ".join(pages.text(PAGE).split())
    for words in (
        f"{limits.NODES:,} values".replace(",", " "),
        f"{limits.ALIASES} aliases, {limits.DEPTH} levels",
        f"{limits.TEXT:,} characters".replace(",", " "),
        f"{limits.TASKS:,} tasks, {limits.WORKERS:,} workers".replace(",", " ").replace("tasks  ", "tasks, "),
    ):
        assert words in text, words
    assert limits.FILE_BYTES == 1 << 20 and job.DRIVER_MIB == 1024


def test_job_reference_lists_all_fields_of_other_launchers() -> None:
    torchx = {
        name if part == "AppDef" else f"{part}.{name}" for part, names in TORCHX.items() for name in names.split()
    }
    assert torchx <= documented_fields("torchx")
    below = {f"resources.{name}" for name in DETERMINED_RESOURCES.split()}
    assert set(DETERMINED.split()) | below <= documented_fields("Determined")
    below = {f"resources.{name}" for name in SKYPILOT_RESOURCES.split()}
    assert set(SKYPILOT.split()) | below <= documented_fields("SkyPilot")
