"""Tests of the hosts that bypass a proxy of the environment, and of errors that name the proxy."""

from __future__ import annotations

import http.server
import threading
import urllib.request

import pytest

from hopsml.core import hadoop_http, proxies
from hopsml.errors import ServiceError

pytestmark = pytest.mark.fast

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all proxies from the environment."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_members_bypass_the_proxy_for_http_clients_and_grpc() -> None:
    assert proxies.bypass_variables(["10.0.0.1", "node2"], {}) == {
        "no_proxy": "10.0.0.1,node2",
        "NO_PROXY": "10.0.0.1,node2",
    }


def test_ipv6_address_bypasses_the_proxy_with_and_without_brackets() -> None:
    assert proxies.bypass_variables(["fd00::1"], {})["no_proxy"] == "fd00::1,[fd00::1]"


def test_hosts_excluded_by_the_user_are_retained_and_the_runs_variables_win() -> None:
    of_run, of_agent = {"no_proxy": "store.example"}, {"no_proxy": "other.example", "NO_PROXY": ".corp, node2"}
    assert proxies.bypass_variables(["node2"], of_run, of_agent) == {
        "no_proxy": "store.example,node2",
        "NO_PROXY": ".corp,node2",
    }


def test_upper_case_no_proxy_is_copied_to_the_lower_case_variable() -> None:
    assert proxies.bypass_variables(["node2"], {"NO_PROXY": ".corp"})["no_proxy"] == ".corp,node2"


def test_no_grpc_proxy_is_extended_if_set() -> None:
    assert proxies.bypass_variables(["node2"], {"no_grpc_proxy": "a", "no_proxy": "b"}) == {
        "no_proxy": "b,node2",
        "NO_PROXY": "b,node2",
        "no_grpc_proxy": "a,node2",
    }


def test_star_in_no_proxy_is_unchanged_and_no_grpc_proxy_lists_the_members() -> None:
    assert proxies.bypass_variables(["node2"], {"no_proxy": "*"}) == {
        "no_proxy": "*",
        "NO_PROXY": "*",
        "no_grpc_proxy": "node2",
    }


def test_no_variable_is_set_without_members() -> None:
    assert proxies.bypass_variables([], {"no_proxy": "a"}) == {}


def test_hosts_of_all_roles_are_members() -> None:
    cluster = '{"chief":["10.0.0.1:40"],"ps":["[fd00::1]:41","10.0.0.2:42"]}'
    assert proxies.hosts_of(cluster, ["10.0.0.1:43", "10.0.0.3:44"]) == ["10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3"]
    assert proxies.hosts_of("", ["", "10.0.0.3:44"]) == ["10.0.0.3"]


def test_addresses_of_this_machine_bypass_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")

    def proxied(url: str) -> bool:
        handlers = proxies.opener(url).handlers
        return any(isinstance(one, urllib.request.ProxyHandler) and one.proxies for one in handlers)  # type: ignore[attr-defined]

    assert not proxied("http://127.0.0.1:8080/") and not proxied("http://[::1]:8080/")
    assert proxied("http://jobs.example:8080/")


def test_failed_request_names_the_proxy_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:1")
    with pytest.raises(
        hadoop_http.NoAnswer, match=r"the proxy 127\.0\.0\.1:1.*http_proxy.*set no_proxy=manager\.invalid"
    ) as refused:
        hadoop_http.request("http://manager.invalid:8088/ws", 2.0)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("no_proxy", "manager.invalid")
    assert proxies.proxy_hint("http://manager.invalid:8088/ws") == ""


def test_failed_request_of_the_service_client_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    from hopsml.client import Client

    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    with pytest.raises(ServiceError, match=r"went through the proxy 127\.0\.0\.1:1"):
        Client("http://jobs.invalid:8080", "token").jobs()


def test_requests_to_this_machine_use_no_proxy_and_read_the_environment_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(hadoop_http.NoAnswer, match="refused"):
        hadoop_http.request("http://manager.invalid:8088/ws", 2.0)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        address = f"http://127.0.0.1:{server.server_port}/ws"
        server.timeout = 30
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        assert hadoop_http.request(address, 30.0).status == 501  # the server itself has no method
        thread.join()
        monkeypatch.delenv("http_proxy")
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        with pytest.raises(hadoop_http.NoAnswer, match="HTTP 501"):
            hadoop_http.opened(address, 30.0)
        thread.join()
