"""What a request may hold, before it is sent to anybody."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from hopsml.errors import ArgumentTypeError
from hopsml.serving import client
from hopsml.serving.claims import ServerRecord

pytestmark = pytest.mark.fast


def test_what_json_does_not_have_is_named() -> None:
    record = ServerRecord("digits", "127.0.0.1", 9, "here", "me", "", 1, datetime.now(timezone.utc))
    with pytest.raises(ArgumentTypeError, match=r"holds <object .*, a object; it must be made of numbers"):
        client.request(record, "/v1/models/digits:predict", {"instances": [object()]}, 1.0)
