"""Targets of files that other processes or users write: records of a run, logs, job files, checkpoints, uploads."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tools.fuzz.target import Target


def _folder() -> Path:
    """Return a new temporary folder, which is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="hopsml-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _one_of(folder: Path, files: Mapping[str, bytes], then: Callable[[], object]) -> Callable[[bytes], object]:
    """Return a reader that replaces the file chosen by the first byte of the input, and calls ``then``.

    All other files keep their valid content; a file without content exists only as an input.
    """
    names = list(files)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if files[name]:
            (folder / name).write_bytes(files[name])

    def read(data: bytes) -> object:
        name = names[data[0] % len(names)] if data else names[0]
        file = folder / name
        file.write_bytes(data[1:])
        try:
            return then()
        finally:
            file.unlink(missing_ok=True)
            if files[name]:
                file.write_bytes(files[name])

    return read


def _numbered(files: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """Return the content of each file, with its number as the first byte."""
    return tuple(bytes([number]) + content for number, content in enumerate(files.values()))


def run_records() -> Target:
    """Return the target of a run's records, as commands, tables, comparison and the web page read them."""
    from hopsml.errors import HopsmlError
    from hopsml.experiment import takeover
    from hopsml.service.browse import run_detail
    from hopsml.service.browse.project import convert_type_errors
    from hopsml.service.browse.run_list import RunIndex
    from hopsml.storage.run_dir import RunDir, to_json
    from hopsml.tracking import catalog, compare
    from hopsml.tracking.mlflow import order

    project = _folder()
    folder = project / "Experiments" / "a_1"
    who = {"pid": 2, "pid_namespace": "pid:[1]", "process_started": 1, "host": "h"}
    run = {
        "format": 1, "name": "digits", "verb": "launch", "started": 1.7e9, "driver_process": who, "command": "x.py",
        "arguments": {"lr": 0.1}, "spec": {"metric_key": "loss", "num_workers": 2}, "user": "anna", "tags": ["a"],
    }  # fmt: skip
    workers = [{"rank": 0, "host": "h", "state": "FINISHED", "slot": 0}, {"rank": 1, "host": "h", "state": "FAILED"}]
    status = {
        "run_id": "a_1",
        "state": "FAILED",
        "seconds": 3.5,
        "error": "rank 1 ...",
        "workers": workers,
        "notes": [],
    }
    report = {"step": 3, "time": 1.7e9, "loss": 0.5}
    driver = {"process": who, "beat": 3, "time": 1.7e9, "progress": {"done": 1, "total": 2, "unit": "epoch"}}
    environment = {
        "python": {"version": "3.11"},
        "packages": {"numpy": "2"},
        "code": {"git": {"commit": "a"}},
        "inputs": [],
    }
    sent = {
        "tracking_uri": "http://h:5000",
        "experiment": "e",
        "state": "open",
        "group": {"key": "k", "name": "n", "count": 2},
    }
    files = {
        "run.json": to_json(run), "status.json": b"", ".outputs.json": to_json({"loss": 0.5}),
        "driver.json": to_json(driver), "best.json": b"", "environment.json": to_json(environment),
        "worker.json": to_json({"python": {}, "hardware": {}, "environment": {}}),
        "inputs.jsonl": b'{"name": "x", "url": "file:///x"}\n', "metrics.jsonl": (json.dumps(report) + "\n").encode() * 2,
        "logs/g0-rank0.system.jsonl": b'{"time": 1.7e9, "cpu_utilization_percentage": 5.0}\n', "gang.jsonl": b"",
        "mlflow.json": to_json(sent),
    }  # fmt: skip
    directory = RunDir(folder.as_uri())

    def then() -> object:
        order.read(directory)
        takeover._read(directory)
        catalog.recent_runs(project.as_uri(), None)
        RunIndex(project.as_uri()).refresh()
        with convert_type_errors("a_1"):  # as the web page and commands read a single run
            stored = catalog.read(directory)
            return (
                run_detail.read_detail(directory),
                compare.differences(stored, stored),
                catalog.newest_values(directory),
            )

    seeds = (*_numbered(files), b"\1" + to_json(status), b"\4" + to_json({"value": 0.5}))
    return Target(_one_of(folder, files, then), (HopsmlError,), seeds)


def run_logs() -> Target:
    """Return the target of the view of a run's logs."""
    from hopsml.errors import StorageError
    from hopsml.service.browse.logs import LogQuery, LogView
    from hopsml.storage.run_dir import RunDir

    folder = _folder()
    lines = (
        b"2026-11-29 10:00:00,123 INFO begin\nplain\n[1,2]<stdout>: x\nWARNING: y\nTraceback (most recent call last):\n"
    )
    files = {"logs/g0-rank0.log": lines, "logs/g1-rank0.log": b"\xff\xfe\r\n" + lines, "run.json": b"{}"}

    def then() -> object:
        for query in (LogQuery(), LogQuery(level="warning"), LogQuery(text="y")):
            view = LogView(RunDir(folder.as_uri()), query)
            view.more()
            view.page(-10, 10)
        return view.find("x", 0)

    return Target(_one_of(folder, files, then), (StorageError,), _numbered(files))


def search_log() -> Target:
    """Return the target of a search's event log, from which the search continues."""
    from hopsml.errors import ArgumentError, StorageError
    from hopsml.experiment.searches import recorded
    from hopsml.search import registry
    from hopsml.search.dispatch import journal
    from hopsml.search.dispatch.dispatch import Dispatch
    from hopsml.search.dispatch.events import AttemptBegan, AttemptEnded, LaneJoined, ValuesReported
    from hopsml.search.dispatch.spec import SearchSpec
    from hopsml.search.space.space import Searchspace
    from hopsml.storage.run_dir import RunDir

    space = Searchspace(lr=("DOUBLE", [0.01, 1.0]), units=("INTEGER", [1, 9]), kind=("CATEGORICAL", ["a", "b"]))
    spec = SearchSpec(num_trials=4)

    def fresh() -> Any:
        return registry.searcher("random", space, 1)

    dispatch = Dispatch(spec, fresh(), None)
    now = 1.0
    for event in (
        LaneJoined(0), LaneJoined(1), AttemptBegan(0, 1), AttemptBegan(1, 1), ValuesReported(0, 1, 3, 0.5),
        AttemptEnded(0, 1, "finished", 2.0, {"m": 2.0}),
    ):  # fmt: skip
        now += 1.0
        dispatch.handle(event, now)
    lines = [*recorded.opening_lines([], space), *journal.fact_lines(dispatch.take_facts())]
    whole = "".join(line + "\n" for line in lines).encode()
    folder = _folder()
    files = {f"{recorded.JOURNAL}/0001-000001.jsonl": whole}
    directory = RunDir(folder.as_uri())

    def then() -> object:
        found = recorded.read_event_log(directory)
        recorded._sessions(found)
        return journal.replay(recorded.search_events(found), spec, fresh())

    with_state = whole + (journal.snapshot_line(dispatch) + "\n").encode()
    return Target(_one_of(folder, files, then), (ArgumentError, StorageError), (b"\0" + whole, b"\0" + with_state))


def mailboxes() -> Target:
    """Return the target of requests to a driver, and of a service's messages to it and its answers."""
    import msgspec

    from hopsml.errors import StorageError
    from hopsml.service.driver import driver_requests
    from hopsml.storage import mailbox
    from hopsml.storage.run_dir import RunDir, read_job_record

    folder = _folder()
    jobs = f"{driver_requests.FOLDER}/tag"
    wish = mailbox.ProfileRequest("id", 0, 5, "raw", False, "anna", 1.7e9)
    files = {
        "cancel.json": b'{"reason": "why", "by": "anna", "from": "h", "asked": 1.7e9}',
        "profile.json": msgspec.json.encode(wish), "continued.json": b'{"run": "file:///b"}',
        f"{jobs}.slots": b"3", f"{jobs}.held": b"[3, 2]", "job.json": b'{"run_dir": "file:///a", "run_id": "a"}',
    }  # fmt: skip
    directory, project = RunDir(folder.as_uri()), folder.as_uri()

    def then() -> object:
        found = (
            mailbox.read_cancel_request(directory),
            mailbox.read_profile_request(directory),
            directory.read_successor(),
        )
        slots = driver_requests.granted_slots(project, "tag"), driver_requests.answered_slots(project, "tag")
        return found, slots, read_job_record(f"{project}/job.json")

    return Target(_one_of(folder, files, then), (StorageError,), _numbered(files))


def job_file() -> Target:
    """Return the target of a job file: what is accepted is written as YAML and read again as the same job."""
    from hopsml.errors import JobFileError
    from hopsml.service.spec import loading

    def read(data: bytes) -> object:
        job = loading.loads(data)
        assert loading.loads(loading.dump(job)) == job
        return job

    whole = b"""name: digits
labels: {team: vision}
priority: 50
time_limit: 2h
dataset: hdfs:///data/digits
retries: 1
tasks:
  train:
    min: 2
    max: 8
    resources: {cores: 4, memory: 16g, gpus: 1, node_label: v100}
    function: train.py:main
    arguments: {batch_size: 64, "on": yes, list: [1, 2.5, ~]}
    env: {A: "1"}
    ports: [tensorboard]
  evaluate: {resources: {memory: 4g}, command: [python, evaluate.py]}
profile: yarn
"""
    search = b"name: a\ntasks:\n  t: {function: 'a.py:f'}\nsearch: {space: {lr: [0.001, 0.1, log]}}\n"
    for text in (whole, search):
        loading.loads(text)
    return Target(read, (JobFileError,), (whole, search))


def checkpoints() -> Target:
    """Return the target of the manifest and description of a checkpoint, on shared storage and on local disk."""
    from hopsml.errors import StorageError
    from hopsml.storage import checkpoints as stored
    from hopsml.training import checkpoint_files

    folder = _folder()
    one = folder / checkpoint_files.folder_name(120)
    one.mkdir()
    files = {
        checkpoint_files.DESCRIPTION: b'{"step": 120, "kind": "fit"}',
        "variables.index": b"abc",
        stored.KEEP: b"3",
    }
    for name, content in files.items():
        (one / name).write_bytes(content)
    stored.write_manifest(one, 120)
    files[stored.MANIFEST] = (one / stored.MANIFEST).read_bytes()
    url = folder.as_uri()

    def then() -> None:
        (one / stored.CORRUPT).unlink(missing_ok=True)
        stored.latest_sound(url)
        checkpoint_files.newest_valid_checkpoint(folder)
        stored.read_retention(one)
        stored.verify_checksums(one)

    return Target(_one_of(one, files, then), (StorageError,), _numbered(files))


def commits() -> Target:
    """Return the target of the state of an elastic run, as agents hold it and checkpoints contain it."""
    import numpy as np

    from hopsml.training.elastic.commits import Snapshot, decode, encode

    arrays: dict[str, Any] = {"w": np.zeros((2, 3), np.float32), "n": np.arange(4)}
    snapshot = Snapshot(3, arrays, {"lr": b"pickle"}, {"epoch": 1, "row": 2.0})
    seeds = b"".join(bytes(piece) for piece in encode(snapshot)), b"".join(map(bytes, encode(Snapshot(0, {}))))
    return Target(lambda data: decode(memoryview(data)).size, (ValueError,), seeds)


def profiles() -> Target:
    """Return the target of a profile of a worker, which the web page shows as a flame graph."""
    import msgspec

    from hopsml.errors import ArgumentError
    from hopsml.service.browse.files import flame_graph

    frames = [{"name": "main", "file": "a.py", "line": 3}, {"name": "step"}]
    profile = {"shared": {"frames": frames}, "profiles": [{"samples": [[0], [0, 1]], "weights": [0.5, 1]}], "name": "x"}
    seed = json.dumps(profile).encode()
    return Target(lambda data: msgspec.json.encode(flame_graph(data)), (ArgumentError,), (seed,))


def model_description() -> Target:
    """Return the target of ``model.json`` of a registered model, which may be another user's."""
    from hopsml.errors import StorageError
    from hopsml.model import description
    from hopsml.model.description import ModelDescription, ModelFile, Signature, TensorSpec

    tensor = TensorSpec("float32", (None, 2))
    found = ModelDescription(
        "m", 1, "sklearn", datetime.now(timezone.utc), {"sklearn": "a.bin"}, Signature({"x": tensor}, {"y": tensor}),
        files={"a.bin": ModelFile(3, "ab" * 32)},
    )  # fmt: skip

    def read(data: bytes) -> object:
        value = description.decode(data, "file:///model.json")
        return value.digest, description.encode(value)

    return Target(read, (StorageError,), (description.encode(found),))


def tfrecords() -> Target:
    """Return the target of TFRecord files, as stored and with right checksums, and of the examples in them."""
    import struct

    from hopsml.errors import ArgumentError, StorageError
    from hopsml.training.data import examples, tfrecord_files
    from hopsml.training.data.tfrecord_files import HEADER, RecordSpan

    def record(content: bytes) -> bytes:
        head = struct.pack("<Q", len(content))
        crcs = [struct.pack("<I", tfrecord_files._masked_crc32c(each)) for each in (head, content)]
        return head + crcs[0] + content + crcs[1]

    def table(content: bytes) -> object:
        spans = tfrecord_files.split_records(
            lambda at, size: content[at : at + size], len(content), 1 << 10, "file:///x"
        )
        found = []
        for span in spans:
            part = content[span.begin : span.end]
            begins, lengths = tfrecord_files.record_offsets(part, span, "file:///x")
            found.append(examples.decode_examples(part, begins.tolist(), lengths.tolist(), None, "x", span.first))
        return found

    def read(data: bytes) -> object:
        kind, rest = data[:1], data[1:]
        if kind == b"\0":
            return table(rest)
        if kind == b"\1":
            return table(record(rest[: len(rest) // 2]) + record(rest[len(rest) // 2 :]))
        if len(rest) >= HEADER:
            return tfrecord_files.first_record(
                lambda at, size: rest[at : at + size], RecordSpan(0, len(rest), 0, 1), "x"
            )
        return None

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    def feature(name: bytes, kind: int, values: bytes) -> bytes:
        return field(1, field(1, name) + field(2, field(kind, values)))

    floats = field(1, struct.pack("<2f", 1.0, 2.0))
    features = feature(b"x", 2, floats) + feature(b"n", 3, field(1, b"\5\6")) + feature(b"s", 1, field(1, b"abc"))
    example = field(1, features)
    seeds = (b"\0" + record(example) * 2, b"\1" + example * 2, b"\2" + record(example))
    return Target(read, (StorageError, ArgumentError), seeds)


def workspace_zip() -> Target:
    """Return the target of the zip with the code of a job, which a user uploads."""
    from hopsml.errors import ArgumentError, ServiceError
    from hopsml.service import workspaces

    folder = _folder()

    def read(data: bytes) -> None:
        target = folder / "unpacked"
        target.mkdir()
        try:
            workspaces.unpack_zip(data, target)
        finally:
            shutil.rmtree(target, ignore_errors=True)

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("job.py", "print(1)\n" * 20)
        archive.writestr("folder/data.txt", "x")
    return Target(read, (ArgumentError, ServiceError), (content.getvalue(),))


def hadoop_tokens() -> Target:
    """Return the target of a Hadoop token file; what is read is written as a file with the same content."""
    from hopsml.core import delegation_tokens as tokens
    from hopsml.core.delegation_tokens import Credentials, Token
    from hopsml.errors import ArgumentError

    def read(data: bytes) -> object:
        found = tokens.parse(data)
        assert tokens.parse(found.encode()) == found
        return [(token.as_text(), token.describe()) for token in found.tokens]

    def text(content: bytes) -> bytes:
        return bytes([len(content)]) + content

    identifier = b"\0" + text(b"anna") + text(b"yarn") + text(b"") + b"\x8a\1\2\3\4\5\6" * 2 + b"\1\2"
    token = Token("ha-hdfs:ns1", identifier, b"password", tokens.HDFS_KIND, "ha-hdfs:ns1")
    whole = Credentials((token,), (("name", b"secret"),)).encode()
    return Target(read, (ArgumentError,), (whole, Credentials().encode()))


def trust_store() -> Target:
    """Return the target of a cluster's trust store: PEM, PKCS #12 or JKS."""
    import struct
    from datetime import timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from hopsml.core import trust_store as stores

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "h")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1)).sign(key, hashes.SHA256())
    )  # fmt: skip
    der = certificate.public_bytes(serialization.Encoding.DER)
    entry = struct.pack(">IH1sQH5sI", 2, 1, b"a", 0, 5, b"X.509", len(der)) + der
    jks = struct.pack(">III", 0xFEEDFEED, 2, 1) + entry + bytes(20)
    seeds = jks, certificate.public_bytes(serialization.Encoding.PEM), b"\x30\x03\2\1\3"
    return Target(lambda data: stores.certificates(data, None), (stores.StoreFormatError,), seeds)


def redaction() -> Target:
    """Return the target of the redaction of texts, code, commands and records, which may be of any content."""
    from hopsml.core import redact

    def read(data: bytes) -> object:
        text = data.decode("utf-8", "replace")
        redact.code(text)
        redact.command(text.split())
        redact.record({text[:50]: [text, {"password": text}], "command": text})
        return redact.text(text)

    text = b"x --token=abcdefgh password: 'hunter2-hunter2' https://user:secret-one@host/?delegation=KAAFYWx Bearer abc.def"
    code = b"AWS_SECRET_ACCESS_KEY = \"wJalrXUtnFEMI/K7MDENG\"  # key\nx = {'api_key': 'sk-1234567890abcdef'}\n"
    return Target(read, (), (text, code, b"-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----\n"))


TARGETS: dict[str, Callable[[], Target]] = {
    "run-records": run_records,
    "run-logs": run_logs,
    "search-log": search_log,
    "mailboxes": mailboxes,
    "job-file": job_file,
    "checkpoints": checkpoints,
    "commits": commits,
    "profiles": profiles,
    "model-description": model_description,
    "tfrecords": tfrecords,
    "workspace-zip": workspace_zip,
    "hadoop-tokens": hadoop_tokens,
    "trust-store": trust_store,
    "redaction": redaction,
}
