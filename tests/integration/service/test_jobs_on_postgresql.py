"""Tests of the job service again, with a real PostgreSQL instead of SQLite."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service import postgresql, test_job_service
from tests.integration.service.postgresql import PostgreSql
from tests.integration.service.test_elastic_jobs import (
    test_a_search_begins_with_the_slot_that_is_free_grows_and_makes_room,
    test_it_begins_small_grows_shrinks_for_another_while_the_server_is_killed_and_grows_again,
)
from tests.integration.service.test_job_service import (
    JobService,
    test_a_job_is_queued_runs_and_ends_and_others_wait_with_a_reason,
    test_a_leader_that_stood_still_leaves_alone_what_another_one_has_started,
    test_a_paused_training_goes_on_from_its_last_commit,
    test_a_second_server_waits_and_takes_over,
    test_failures_are_tried_again_and_what_failed_says_why,
    test_killed_at_any_of_its_acts_it_loses_no_job_and_doubles_none,
    test_pause_resume_cancel_move_and_clone,
    test_the_service_is_away_and_its_jobs_go_on,
)

__all__ = [  # they are collected here, too
    "test_a_job_is_queued_runs_and_ends_and_others_wait_with_a_reason",
    "test_a_leader_that_stood_still_leaves_alone_what_another_one_has_started",
    "test_a_paused_training_goes_on_from_its_last_commit",
    "test_a_search_begins_with_the_slot_that_is_free_grows_and_makes_room",
    "test_a_second_server_waits_and_takes_over",
    "test_failures_are_tried_again_and_what_failed_says_why",
    "test_it_begins_small_grows_shrinks_for_another_while_the_server_is_killed_and_grows_again",
    "test_killed_at_any_of_its_acts_it_loses_no_job_and_doubles_none",
    "test_pause_resume_cancel_move_and_clone",
    "test_the_service_is_away_and_its_jobs_go_on",
]

pytestmark = [pytest.mark.local, pytest.mark.variant, pytest.mark.xdist_group("postgresql")]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    yield from postgresql.running()


@pytest.fixture
def service(tmp_path: Path, server: PostgreSql) -> Iterator[JobService]:
    """With a database of its own."""
    for made in test_job_service.served(tmp_path):
        made.database = server.created(f"jobs_{secrets.token_hex(8)}")
        yield made
