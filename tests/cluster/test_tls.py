"""Tests of what a handshake with the coordinator contains, and what it omits."""

from __future__ import annotations

import ssl

import pytest

from hopsml.cluster.shared.tls import make_identity
from tests.cluster.simulated import client_tls

pytestmark = pytest.mark.fast


def test_a_handshake_is_of_the_newest_kind_and_brings_no_tickets_that_nobody_would_use() -> None:
    identity = make_identity()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_tls(identity.certificate).wrap_bio(to_client, to_server)
    server = identity.context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    client.do_handshake()
    server.do_handshake()
    server.write(b"welcome")
    assert client.read() == b"welcome"
    assert client.version() == "TLSv1.3" and client.session is not None and not client.session.has_ticket
