"""Tests of the job service again, with a real PostgreSQL instead of SQLite."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service import postgresql, test_job_service
from tests.integration.service.postgresql import PostgreSql
from tests.integration.service.test_elastic_jobs import (
    test_elastic_job_starts_small_grows_shrinks_across_a_server_crash_and_regrows,
    test_search_starts_on_one_free_slot_grows_and_releases_slots,
)
from tests.integration.service.test_job_service import (
    JobService,
    test_failed_job_is_retried_and_its_cause_states_the_exit_status,
    test_job_is_paused_resumed_cancelled_moved_and_cloned,
    test_job_runs_and_ends_while_another_waits_with_a_reason,
    test_jobs_continue_during_a_service_outage,
    test_paused_training_continues_from_its_last_commit,
    test_server_crash_at_any_action_loses_no_job_and_starts_none_twice,
    test_standby_server_waits_and_takes_over,
    test_suspended_former_leader_does_not_touch_jobs_of_its_successor,
)

__all__ = [  # they are collected here, too
    "test_elastic_job_starts_small_grows_shrinks_across_a_server_crash_and_regrows",
    "test_failed_job_is_retried_and_its_cause_states_the_exit_status",
    "test_job_is_paused_resumed_cancelled_moved_and_cloned",
    "test_job_runs_and_ends_while_another_waits_with_a_reason",
    "test_jobs_continue_during_a_service_outage",
    "test_paused_training_continues_from_its_last_commit",
    "test_search_starts_on_one_free_slot_grows_and_releases_slots",
    "test_server_crash_at_any_action_loses_no_job_and_starts_none_twice",
    "test_standby_server_waits_and_takes_over",
    "test_suspended_former_leader_does_not_touch_jobs_of_its_successor",
]

pytestmark = [pytest.mark.local, pytest.mark.variant, pytest.mark.xdist_group("postgresql")]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    yield from postgresql.running()


@pytest.fixture
def service(tmp_path: Path, server: PostgreSql) -> Iterator[JobService]:
    """Yield a service with a separate database."""
    for made in test_job_service.served(tmp_path):
        made.database = server.created(f"jobs_{secrets.token_hex(8)}")
        yield made
