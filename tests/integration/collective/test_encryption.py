"""Tests of encrypted groups: bit-identical results, and no reading or changing of messages in between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hopsml.collective import Group
from hopsml.errors import CollectiveError, CollectiveRefused, PeerLost
from tests.helpers import clock
from tests.helpers.collective.together import SECRET, TRANSPORTS, Array, addresses, each, form, group, listeners
from tests.integration.collective import tapped_network
from tests.integration.collective.tapped_network import CONTROL, DATA, Harm, Tap, tap

pytestmark = pytest.mark.local

ALGORITHMS = ("direct", "pairwise", "ring")
TYPES = ("float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int64", "uint8")
COUNTS = (0, 5, 4099, 150_001)
LARGE = np.ones(1_000_000, "float32")


def values(rank: int, count: int, dtype: Any) -> Array:
    """Return values whose sum depends on the order."""
    return (100 * np.random.default_rng([rank, count]).normal(size=count)).astype(dtype)


def all_operations(member: Group, counts: tuple[int, ...] = COUNTS) -> list[bytes]:
    """The bytes of every operation's results, for every type, reduction, wire and size."""
    found: list[Array] = []
    rank, size = member.rank, member.size
    for count in counts:
        for dtype in TYPES:
            x = values(rank, count, dtype)
            found += [member.all_reduce(x, reduction) for reduction in ("sum", "mean", "min", "max")]
            found += [member.all_gather(x), member.broadcast(x, size - 1)]
            found.append(member.reduce_scatter(np.stack([x] * size)))
        x = values(rank, count, "float32")
        found += [member.all_reduce(x, wire=wire) for wire in ("float16", "bfloat16")]
        member.all_reduce(x, out=x)
        found.append(x)
        member.barrier()
    return [one.tobytes() for one in found]


@pytest.mark.parametrize(
    ("size", "algorithm"),
    [(2, "auto"), (3, "auto"), *(pytest.param(4, way, marks=pytest.mark.variant) for way in ALGORITHMS)],
)
def test_results_are_bit_identical_with_and_without_encryption(size: int, algorithm: str) -> None:
    results = []
    for encryption in (False, True):
        with group(size, algorithm=algorithm, encryption=encryption) as members:
            results.append(each(members, all_operations))
    assert all(isinstance(one, list) for one in results[0]), results[0]
    assert results[0] == results[1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_of_each_algorithm_are_identical_with_encryption(algorithm: str) -> None:
    results = []
    for encryption in (False, True):
        with group(3, algorithm=algorithm, encryption=encryption) as members:
            results.append(each(members, lambda m: [m.all_reduce(values(m.rank, n, "float32")) for n in COUNTS]))
    for plain, encrypted in zip(*results, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(plain, encrypted, strict=True))


def test_members_on_several_machines_reduce_with_encryption() -> None:
    """In memory within each, encrypted between them."""
    with group(5, TRANSPORTS["both"](5), encryption=True) as members:
        for result in each(members, lambda m: m.all_reduce(LARGE)):
            assert np.array_equal(result, 5 * LARGE)


def test_group_reformed_without_a_member_is_still_encrypted() -> None:
    first = form(3, encryption=True, resumable=True)
    each(first, lambda m: m.barrier())
    first[2].end("enough")
    sockets = listeners(2)
    names = addresses(sockets)

    def continue_call(rank: int) -> Array:
        with ThreadPoolExecutor(1) as beside:
            call = beside.submit(first[rank].all_reduce, LARGE)
            first[rank].reform(rank, names, secret=SECRET, generation=1, listener=sockets[rank].detach())
            return call.result()

    with ThreadPoolExecutor(2) as pool, tap(sockets[0].getsockname()) as between:
        names[0] = between.address
        for result in pool.map(continue_call, range(2)):
            assert np.array_equal(result, 2 * LARGE)
        assert LARGE[:8].tobytes() not in between.seen and len(between.seen) > LARGE.nbytes
    for member in first:
        member.end()


@contextmanager
def tapped(size: int, harm: tuple[int, int, Harm] | None = None, **options: Any) -> Iterator[tuple[Tap, list[Group]]]:
    """Yield a group whose traffic with rank 0 passes through a tap; ``harm``: member, channel and change."""
    sockets = listeners(size)
    names = addresses(sockets)
    options = {"secret": SECRET, "form_timeout_s": 20, "timeout_s": 20} | options
    with tap(sockets[0].getsockname()) as between, ThreadPoolExecutor(size) as pool:
        names[0] = between.address
        if harm is not None:
            between.spoil(*harm)
        forming = [pool.submit(Group.form, r, names, listener=sockets[r].detach(), **options) for r in range(size)]
        members = [one.result() for one in forming]
        try:
            yield between, members
        finally:
            for member in members:
                member.end()


@pytest.mark.parametrize("encryption", [False, True])
def test_eavesdropper_reads_no_plaintext(encryption: bool) -> None:
    """Without encryption all of it: else the test would not listen well."""
    x = np.arange(5000, dtype="float64") * np.pi
    with tapped(2, encryption=encryption) as (between, members):
        each(members, lambda m: m.all_reduce(x, name="a name of mine"))
        each(members, lambda m: m.all_gather(x))
        members[0].end("a reason of mine")
        with pytest.raises(PeerLost, match="a reason of mine"):
            members[1].barrier()
        traffic = bytes(between.seen)
    for word in (x[100:104].tobytes(), (2 * x)[4100:4104].tobytes(), b"a name of mine", b"a reason of mine"):
        assert (word in traffic) is not encryption


SPOILED = ("flip", "flip_size", "repeat", "leave_out", "swap", "invent")


@pytest.mark.parametrize("harm", SPOILED)
def test_tampering_with_data_is_detected_by_all_members(harm: str) -> None:
    """The rank is that of the member whose words they are not."""
    how = getattr(tapped_network, harm)
    with tapped(3, (1, DATA, how), encryption=True) as (between, members):
        for error in each(members, lambda m: m.all_reduce(LARGE)):
            assert isinstance(error, CollectiveRefused) and error.rank == 1, error
            assert "connection with rank 1 is not as rank 1 encrypted it" in str(error)
        assert between.harmed.is_set()


def test_connection_cut_within_a_record_is_a_loss() -> None:
    with tapped(3, (1, DATA, tapped_network.cut), encryption=True) as (between, members):
        for rank, error in enumerate(each(members, lambda m: m.all_reduce(LARGE))):
            assert isinstance(error, PeerLost) and error.rank in (0, 1), (rank, error)
        assert between.harmed.is_set()


@pytest.mark.parametrize("harm", ["flip", "flip_size"])
def test_tampering_with_control_messages_is_detected(harm: str) -> None:
    """Here the message about the calls of a member of a resumable group."""
    how = getattr(tapped_network, harm)
    with (
        pytest.raises(CollectiveError) as caught,
        tapped(2, (1, CONTROL, how), encryption=True, resumable=True, form_timeout_s=3),
    ):
        pass
    assert isinstance(caught.value, CollectiveRefused) and caught.value.rank in (None, 1)
    assert "connection with rank 1 is not as rank 1 encrypted it" in str(caught.value)


@pytest.mark.parametrize("who", [0, 1])
def test_member_without_encryption_is_refused_on_both_sides(who: int) -> None:
    """On both sides, at once, with the reason; ``who`` of the two encrypts."""
    sockets = listeners(2)
    names = addresses(sockets)

    def one(rank: int) -> Exception:
        given = {"encryption": rank == who, "listener": sockets[rank].detach(), "form_timeout_s": 20}
        with pytest.raises(CollectiveRefused) as caught:
            Group.form(rank, names, secret=SECRET, **given)
        return caught.value

    start_s = clock.awake()
    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(one, range(2)))
    assert clock.awake() - start_s < 10
    for rank, error in enumerate(errors):
        words = "it does not encrypt, and this member does" if rank == who else "it encrypts, and this member does not"
        assert f"rank {1 - rank} cannot be in one group with this member: {words}: give all members" in str(error)


WITHOUT = """
from hopsml.collective import Group
from hopsml.errors import CollectiveUnavailable
Group.form(0, [""], secret=b"a secret of the tests").barrier()
try:
    Group.form(0, ["127.0.0.1:0", "127.0.0.1:0"], secret=b"a secret of the tests", encryption=True)
except CollectiveUnavailable as error:
    print(error)
"""


def test_missing_libcrypto_is_named(tmp_path: Path) -> None:
    """Its files are broken here. No other test needs them."""
    for name in ("libcrypto.so.3", "libcrypto.so.1.1"):
        (tmp_path / name).touch()
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, check=True)
    assert "encryption needs OpenSSL's libcrypto" in done.stdout and "apt-get install libssl3" in done.stdout, (
        done.stderr
    )
    assert "libcrypto.so.3: file too short" in done.stdout and "libcrypto.so.1.1: file too short" in done.stdout
