"""Tests of the hosts that bypass a proxy of the environment, and of errors that name the proxy."""

from __future__ import annotations

import http.server
import threading
import urllib.request

import pytest

from hopsml.core import proxies
from hopsml.errors import ServiceError
from hopsml.yarn import resource_manager

pytestmark = pytest.mark.fast

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all proxies from the environment."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_members_are_excluded_for_http_clients_and_grpc() -> None:
    assert proxies.bypassing(["10.0.0.1", "node2"], {}) == {
        "no_proxy": "10.0.0.1,node2",
        "NO_PROXY": "10.0.0.1,node2",
    }


def test_an_ipv6_address_is_excluded_with_and_without_brackets() -> None:
    assert proxies.bypassing(["fd00::1"], {})["no_proxy"] == "fd00::1,[fd00::1]"


def test_hosts_excluded_by_the_user_stay_excluded_and_the_runs_environment_has_priority() -> None:
    of_run, of_agent = {"no_proxy": "store.example"}, {"no_proxy": "other.example", "NO_PROXY": ".corp, node2"}
    assert proxies.bypassing(["node2"], of_run, of_agent) == {
        "no_proxy": "store.example,node2",
        "NO_PROXY": ".corp,node2",
    }


def test_only_the_upper_case_variable_reaches_grpc_too() -> None:
    assert proxies.bypassing(["node2"], {"NO_PROXY": ".corp"})["no_proxy"] == ".corp,node2"


def test_no_grpc_proxy_is_extended_if_set_as_grpc_then_reads_no_other_variable() -> None:
    assert proxies.bypassing(["node2"], {"no_grpc_proxy": "a", "no_proxy": "b"}) == {
        "no_proxy": "b,node2",
        "NO_PROXY": "b,node2",
        "no_grpc_proxy": "a,node2",
    }


def test_a_star_is_unchanged_and_grpc_which_does_not_support_it_gets_the_members() -> None:
    assert proxies.bypassing(["node2"], {"no_proxy": "*"}) == {
        "no_proxy": "*",
        "NO_PROXY": "*",
        "no_grpc_proxy": "node2",
    }


def test_nothing_is_set_without_members() -> None:
    assert proxies.bypassing([], {"no_proxy": "a"}) == {}


def test_the_hosts_of_all_roles_are_members() -> None:
    cluster = '{"chief":["10.0.0.1:40"],"ps":["[fd00::1]:41","10.0.0.2:42"]}'
    assert proxies.hosts_of(cluster, ["10.0.0.1:43", "10.0.0.3:44"]) == ["10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3"]
    assert proxies.hosts_of("", ["", "10.0.0.3:44"]) == ["10.0.0.3"]


def test_this_machines_own_addresses_are_opened_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")

    def proxied(url: str) -> bool:
        handlers = proxies.opener(url).handlers
        return any(isinstance(one, urllib.request.ProxyHandler) and one.proxies for one in handlers)  # type: ignore[attr-defined]

    assert not proxied("http://127.0.0.1:8080/") and not proxied("http://[::1]:8080/")
    assert proxied("http://jobs.example:8080/")


def test_a_request_that_fails_names_the_proxy_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:1")
    with pytest.raises(
        resource_manager.NoAnswer, match=r"the proxy 127\.0\.0\.1:1.*http_proxy.*set no_proxy=manager\.invalid"
    ) as refused:
        resource_manager.request("http://manager.invalid:8088/ws", 2.0)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("no_proxy", "manager.invalid")
    assert proxies.explain("http://manager.invalid:8088/ws") == ""


def test_the_job_services_client_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    from hopsml.client import Client

    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    with pytest.raises(ServiceError, match=r"went through the proxy 127\.0\.0\.1:1"):
        Client("http://jobs.invalid:8080", "token").jobs()


def test_a_request_to_this_machine_passes_no_proxy_and_each_request_reads_the_environment_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(resource_manager.NoAnswer, match="refused"):
        resource_manager.request("http://manager.invalid:8088/ws", 2.0)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        address = f"http://127.0.0.1:{server.server_port}/ws"
        server.timeout = 30
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        assert resource_manager.request(address, 30.0).status == 501  # the server itself has no method
        thread.join()
        monkeypatch.delenv("http_proxy")
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        with pytest.raises(resource_manager.NoAnswer, match="HTTP 501"):
            resource_manager.opened(address, 30.0)
        thread.join()
