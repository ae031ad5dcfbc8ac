"""Token of the server's own user: sent to that user's servers only, and not accepted by a later one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from hopsml.client import Client
from hopsml.errors import ArgumentError, ServiceError
from hopsml.service.store import JobStore
from hopsml.service.store.accounts import Tokens
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.foreign_listener import OTHER, foreign_listener
from tests.integration.service.test_job_service import JobService, service

pytestmark = pytest.mark.local
__all__ = ["service"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_no_token_is_sent_to_another_user_at_the_port_of_a_killed_server(service: JobService) -> None:
    client = service.start()
    assert client.jobs() == []
    earlier, port = client._token, urlsplit(client._address).port
    service.kill()
    variables = {name: value for name, value in os.environ.items() if name not in ("HOPSML_SERVER", "HOPSML_TOKEN")}
    variables["HOPSML_SERVER_STATE"] = str(service.state)
    with foreign_listener(port or 0) as other:
        with pytest.raises(
            ServiceError, match=f"user {OTHER} listens at port {port} of this machine instead of the job"
        ):
            client.jobs()
        command = [sys.executable, "-m", "hopsml", "jobs", "ls"]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=END_S)
        assert ended.returncode == 1 and f"user {OTHER} listens" in ended.stderr and "start the server" in ended.stderr
        assert ended.stderr.count("\n") == 1
        elsewhere = service.start()  # the port is taken
        assert client.jobs() == [] and client._address == elsewhere._address
    assert other.received == b""
    assert client._token == elsewhere._token != earlier
    with pytest.raises(ServiceError, match="needs a token that is valid"):
        Client(elsewhere._address, earlier).jobs()
    service.stop()


def test_client_continues_with_the_new_token_of_a_restarted_server(service: JobService) -> None:
    client = service.start()
    given, first = client.create_token("vera"), client._token
    address = client._address
    assert service.stop() == 0 and not (service.state / "client.json").exists()
    with pytest.raises(ArgumentError, match="no job service is known"):
        Client.of_state(service.state)
    service.start()
    assert client.jobs() == [] and client._address == address, "the same port"
    assert client._token != first and Client(address, given).jobs() == []
    with pytest.raises(ServiceError, match="needs a token that is valid"):
        Client(address, first).jobs()
    second = client._token
    service.stop()
    with closing(JobStore.open(f"sqlite:///{service.state}/service.db")) as store:
        assert Tokens(store).caller(second, time.time()) is None, "not even before the next start"


def test_servers_of_one_state_folder_share_token_and_record(service: JobService) -> None:
    first = service.start()
    leader = service.process
    second = service.start()
    assert second._token == first._token and Client.of_state(service.state)._address == first._address
    standby, service.process = service.process, leader
    service.stop()
    wait_until(lambda: second.cluster()["leads"], "the other one to lead")
    wait_until((service.state / "client.json").exists, "its record")
    known = Client.of_state(service.state)
    assert (known._address, known._token) == (second._address, first._token) and known.jobs() == []
    service.process = standby
    service.stop()
    assert not (service.state / "client.json").exists()
