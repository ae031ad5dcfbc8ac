"""Tests that workers fork with TensorFlow already imported, on which fast launches depend."""

from __future__ import annotations

import asyncio

import pytest

from hopsml.cluster.forking import fork_client
from hopsml.cluster.forking.fork_server import Imported

pytestmark = pytest.mark.tensorflow


@pytest.mark.variant
def test_workers_are_forked_with_tensorflow_imported():
    async def ready() -> Imported:
        client = fork_client.ForkClient(("tensorflow",), *fork_client.start_process(("tensorflow",)))
        try:
            return await asyncio.wait_for(client.ready, 50)
        finally:
            await client.close()

    answer = asyncio.run(ready())
    assert (answer.mode, answer.problem) == ("fork", "")
