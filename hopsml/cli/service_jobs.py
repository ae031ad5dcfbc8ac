"""Commands of ``hopsml jobs`` that call a job service: submit, list, explain, follow, change and delete jobs."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.cli.terminal import AsJson, print_plain

if TYPE_CHECKING:
    from pathlib import Path

    from hopsml.client import Client, JobRun, ServiceJob, ServiceJobDetail
    from hopsml.service.spec import JobSpec

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job: NAME-NUMBER, or the number alone.")]
WRONG = 2  # exit status for a job file with errors
_BEFORE_ERROR = re.compile(r"^task \S+ failed: (exit status -?\d+: )?(run \S+: )?")  # in the cause of a failed job
JobFile = Annotated[str, typer.Argument(metavar="FILE", help="Path of the job file.")]


def register(app: typer.Typer) -> None:
    """Add the commands that call a job service."""
    for command in (submit, run, ls, show, why, logs, metrics, cancel, pause, resume, move, clone, rm):
        app.command()(command)


def submit(
    job: JobFile,
    wait: Annotated[
        bool, typer.Option("--wait", help="Print the job's log until it ends; exit status 0 if it finished.")
    ] = False,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: submissions with the same key create one job. Default: none.")
    ] = None,
) -> None:
    """Submit the job of a file, or create its schedule if it has one, and print the id.

    The code that the file names is uploaded.
    """
    if key is not None and not key.strip():
        raise typer.BadParameter("--key is empty; give a name for this submission, or omit --key")
    if load_job_or_exit(job).schedule is not None:
        print(_client().put_schedule(job).id)
        return
    _submitted(_client().submit(job, idempotency_key=key or ""), wait)


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Script to run, FILE.py or FILE.py:FUNCTION.")],
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each worker.")] = 0,
    cores: Annotated[int, typer.Option(min=1, help="Cores of each worker.")] = 1,
    memory: Annotated[str, typer.Option(help="Memory of each worker, such as 512m or 16g.")] = "1g",
    queue: Annotated[str, typer.Option(help="Queue of the job.")] = "default",
    priority: Annotated[int, typer.Option(min=1, max=100, help="Priority; higher is more urgent.")] = 50,
    name: Annotated[str, typer.Option(help="Name of the job. Default: the script's name.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Print the job's log until it ends; exit status 0 if it finished.")
    ] = False,
) -> None:
    """Submit a script without a job file, and print the job's id; the script's folder is uploaded."""
    import tempfile
    from pathlib import Path

    import yaml

    from hopsml.errors import ArgumentError, JobFileError

    file, colon, function = script.partition(":")
    path = Path(file).absolute()
    _check_script(path, file, function if colon else None)
    target = {"function": f"{path.name}:{function}"} if function else {"script": path.name}
    task = {**target, "count": workers, "resources": {"cores": cores, "gpus": gpus, "memory": memory}}
    job_name = name or re.sub("[^a-z0-9]", "-", path.stem.lower())[:63].strip("-") or "job"
    content = {
        "name": job_name,
        "queue": queue,
        "priority": priority,
        "code": str(path.parent),
        "tasks": {"main": task},
    }
    with tempfile.TemporaryDirectory(prefix="hopsml-job-") as folder:
        job_file = Path(folder, "job.yaml")
        job_file.write_text(yaml.safe_dump(content))
        try:
            submitted = _client().submit(job_file)
        except JobFileError as error:  # of a file that the user has not written
            raise ArgumentError("; ".join(problem.partition(": ")[2] for problem in error.problems)) from None
    _submitted(submitted, wait)


def _check_script(path: Path, given: str, function: str | None) -> None:
    """Raise ArgumentError if there is no such Python script.

    Args:
        path: absolute path of the script.
        given: the path as it was given.
        function: text behind the colon; None without a colon.
    """
    from hopsml.core import suggestions
    from hopsml.errors import ArgumentError

    if path.is_dir():
        raise ArgumentError(f"{given} is a folder; give a script in it, such as {given.rstrip('/')}/train.py")
    if path.suffix != ".py":
        raise ArgumentError(
            f"{given}: the name of a script must end in .py. For other programs write a job file with command:, and run "
            "`hopsml jobs submit`"
        )
    if not path.is_file():
        there = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
        meant = suggestions.suggestion_text(path.name, there, "give the path of an existing script")
        raise ArgumentError(f"there is no script {given}; {meant}")
    if function is not None and not function.isidentifier():
        raise ArgumentError(
            f"{given}:{function}: the text after the colon must be the name of a function, as in {given}:main"
        )


def _submitted(job: ServiceJob, wait: bool) -> None:
    print(job.id, flush=True)
    if job.why:
        print_plain(job.why, to_stderr=True)
    if not wait:
        return
    from hopsml.core.states import Lifecycle

    client = _client()
    with _continuing(job.id), _reporting_waits(client, job.id, job.why):
        _print_log(_followed(client, job.id))
    ended = client.job(job.id)
    print_plain(f"{ended.id}: {ended.state}: {ended.cause}", to_stderr=True)
    raise typer.Exit(0 if ended.state == Lifecycle.FINISHED else 1)


_NUMBER = re.compile(r"(?<![-\w])\d+")  # none within the id of a job
WAITS_POLL_S = 5.0  # a job that starts sooner has no line about its waiting


@contextlib.contextmanager
def _reporting_waits(client: Client, job: str, shown: str) -> Iterator[None]:
    """Print on a thread why the job waits, as long as the context lasts: at first, and whenever other work holds its slots.

    Args:
        client: connection to the service.
        job: id of the job.
        shown: reason that has been printed already; "" for none.
    """
    from hopsml.errors import HopsmlError

    has_ended = threading.Event()

    def report() -> None:
        known = shown
        while not has_ended.wait(WAITS_POLL_S):
            with contextlib.suppress(HopsmlError):  # the service restarts; the log's reader reports a lasting failure
                why = client.job(job).why
                if is_new_reason(why, known):
                    print_plain(f"{job} waits: {why}", to_stderr=True)
                known = why or known

    thread = threading.Thread(target=report, name="hopsml-job-waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()


def is_new_reason(why: str, known: str) -> bool:
    """Return True for a reason to wait that differs from the known one in more than numbers and times."""
    return bool(why) and _NUMBER.sub("#", why) != _NUMBER.sub("#", known)


@contextlib.contextmanager
def _continuing(job: str) -> Iterator[None]:
    """Print on Ctrl-C, before KeyboardInterrupt is raised, that the followed job continues."""
    try:
        yield
    except KeyboardInterrupt:
        follows, ends = f"hopsml jobs logs -f {job}", f"hopsml jobs cancel {job}"
        typer.echo(f"{job} continues: `{follows}` follows the job, `{ends}` ends it", err=True)
        raise


def ls(
    all_: Annotated[bool, typer.Option("--all", help="List ended jobs, too.")] = False,
    owner: Annotated[str, typer.Option(help="Only jobs of this user. Default: all users.")] = "",
    queue: Annotated[str, typer.Option(help="Only jobs of this queue. Default: all queues.")] = "",
    text: Annotated[str, typer.Option(help="Only jobs whose name contains this text. Default: all jobs.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs.")] = 100,
    json: AsJson = False,
) -> None:
    """List jobs that have not ended, newest first, with progress, and why a job waits or has failed.

    On a terminal the reason is cut at its width; `hopsml jobs why` prints all of it.
    """
    from hopsml.core.states import Lifecycle

    states = () if all_ else tuple(state for state in Lifecycle if not state.is_final)
    found = _client().jobs(states=states, owner=owner, queue=queue, text=text, limit=limit, why=True, progress=True)
    if json:
        _print_json(found)
        return
    if not found:
        print("no jobs" if all_ else "no running or waiting jobs; --all also lists ended jobs")
        return
    from hopsml.cli.terminal import print_rows

    has_progress = any(job.progress for job in found)
    rows = [["job", "state", "owner", "queue", "priority", "age", *["progress"] * has_progress, "reason"]]
    for job in found:
        age = _duration(time.time() - job.submitted_s)
        progress = [job.progress.text() if job.progress else "-"] if has_progress else []
        rows.append(
            [job.id, str(job.state), job.owner, job.queue, str(job.priority), age, *progress, _short_reason(job)]
        )
    print_rows(rows, numbers=("priority", "age"), is_cut=True)


def _short_reason(job: ServiceJob) -> str:
    """Return why a job waits, or its cause; of an error that ended a task the error itself, which may be cut."""
    return job.why or _BEFORE_ERROR.sub(r"\1", job.cause)


def show(job: JobArgument, json: AsJson = False) -> None:
    """Print everything that is recorded of a job: state, reason, tasks, runs, job file, history."""
    client = _client()
    found = client.job(job)
    made, problem = _runs(client, job)
    if json:
        import msgspec

        _print_json({**msgspec.to_builtins(found), "runs": made})
        return
    print_plain(f"{found.id}: {found.state}: {found.cause}")
    if found.why:
        print_plain(f"why: {found.why}")
    print_plain(f"owner {found.owner}, queue {found.queue}, priority {found.priority}, profile {found.profile}")
    if found.progress:
        print_plain(f"progress: {found.progress.text()}")
    for one in found.applications:
        print_plain(
            f"task {one.task}: {one.state} {one.application_id or one.tag}" + (f": {one.cause}" if one.cause else "")
        )
    for size in found.sizes:
        if size.slots and size.fewest < size.most:
            back = f" (releasing {size.slots - size.target})" if size.target < size.slots else ""
            print_plain(f"task {size.task}: {size.slots} of {size.fewest} to {size.most} slots{back}")
    for run in made:
        metric = f": {run.metric_name} {run.metric:g}" if run.metric is not None else ""
        print_plain(f"run {run.id}: {run.state}{metric}")
    if problem:
        print_plain(f"runs: {problem}")
    print_plain("\n" + found.spec.rstrip() + "\n")
    for change in client.changes(job):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.at_s))
        print_plain(f"{at}  {f'{change.task}: ' if change.task else ''}{change.state}  {change.cause}".rstrip())


def _runs(client: Client, job: str) -> tuple[list[JobRun], str]:
    """Return the runs of a job, and an error message if its project cannot be read."""
    from hopsml.errors import ServiceError

    try:
        return client.runs(job), ""
    except ServiceError as error:
        return [], str(error)


def why(job: JobArgument) -> None:
    """Print why a job waits: its needs, free slots, the jobs that hold the rest, and remedies.

    Of a running elastic job, print its number of slots.
    """
    client = _client()
    found = client.job(job)
    print_plain(found.why or f"{found.state}: {found.cause}")


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new output until the job has ended.")] = False,
    task: Annotated[str, typer.Option(help="Task whose output is printed. Default: all tasks.")] = "",
    number: Annotated[
        int | None, typer.Option("--try", min=1, help="Try of the job, from 1. Default: the newest.")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Print the output of this worker of the newest run. Default: that of the driver."),
    ] = None,
    run: Annotated[str, typer.Option(help="Run of --rank, from `hopsml jobs show`. Default: the newest run.")] = "",
) -> None:
    """Print the output of a job's driver, or with --rank of one of its workers.

    If the job was tried more than once, stderr names the try. On a terminal, control characters other than colours are
    removed.
    """
    if follow and number is not None:
        raise typer.BadParameter("--follow prints the newest try; omit --try or --follow")
    if rank is None and run:
        raise typer.BadParameter("--run selects a run of a worker; add --rank")
    if rank is not None and number is not None:
        raise typer.BadParameter("--try selects the output of a driver; for a worker give --run")
    client = _client()
    if follow or rank is not None:
        with _continuing(job) if follow else contextlib.nullcontext():
            lines = _followed(client, job, task) if rank is None else _rank_lines(client, job, rank, task, run, follow)
            has_output = _print_log(lines)
        if not has_output:
            _print_no_output(client, job, rank, run)
        return
    found = client.job(job)
    _print_try(found, number or found.tries)
    tasks = [task] if task else _tasks(found)
    has_output = False
    for one in tasks:
        if len(tasks) > 1:
            print_plain(f"==> task {one} <==")
        has_output |= _print_log(_printed(client, job, one, number or max(1, found.tries)))
    if not has_output:
        _print_no_output(client, job)


def _print_no_output(client: Client, job: str, rank: int | None = None, run: str = "") -> None:
    """Print why there is no output of a job's driver, or of a worker of one of its runs."""
    found = client.job(job)
    if rank is None:
        kept = ", or its log was deleted from the server" if found.state.is_final else ""
        begun = f"its driver has printed nothing{kept}" if found.started_s else "its driver has not started"
        text = f"{found.id} ({found.state}): {begun}"
    else:
        made = [one for one in client.runs(job) if run in ("", one.id)]
        what = (
            f"rank {rank} of run {made[-1].id} ({made[-1].state}) has printed nothing" if made else "it has made no run"
        )
        text = f"{found.id} ({found.state}): {what}"
    print_plain(f"{text}{'' if found.state.is_final else ' yet'}", to_stderr=True)


def _rank_lines(client: Client, job: str, rank: int, task: str, run: str, follow: bool) -> Iterator[str]:
    for line in client.rank_log(job, rank, task, run, follow=follow):
        yield f"{line}\n"


def _tasks(job: ServiceJobDetail) -> list[str]:
    """Return the names of a job's tasks; [""] if it has one task."""
    names = [size.task for size in job.sizes]
    return names if len(names) > 1 else [""]


def _followed(client: Client, job: str, task: str = "") -> Iterator[str]:
    """Yield a task's driver output until the job has ended; with several tasks line by line, prefixed by the task's name."""
    tasks = [task] if task else _tasks(client.job(job))
    if len(tasks) == 1:
        yield from client.follow(job, tasks[0])
        return
    received: SimpleQueue[tuple[str, str | BaseException | None]] = SimpleQueue()

    def follow(name: str) -> None:
        try:
            for piece in client.follow(job, name):
                received.put((name, piece))
            received.put((name, None))
        except BaseException as error:  # noqa: BLE001 raised below, by the thread that prints
            received.put((name, error))

    for name in tasks:
        threading.Thread(target=follow, args=(name,), daemon=True).start()
    rests = dict.fromkeys(tasks, "")
    while rests:
        name, piece = received.get()
        if isinstance(piece, BaseException):
            raise piece
        *lines, rests[name] = (rests[name] + (piece or "")).split("\n")
        if piece is None and (rest := rests.pop(name)):
            lines.append(rest)
        yield from (f"{name}: {line}\n" for line in lines)


def _printed(client: Client, job: str, task: str, number: int) -> Iterator[str]:
    offset = 0
    while True:
        text, offset = client.log(job, task, offset, try_number=number)
        if not text:
            return
        yield text


def _print_log(pieces: Iterable[str]) -> bool:
    """Print the pieces of a log; return True if there was any text."""
    from hopsml.cli.terminal import without_control_sequences

    has_text = False
    for text in without_control_sequences(pieces) if sys.stdout.isatty() else pieces:
        has_text = has_text or bool(text)
        print(text, end="", flush=True)
    return has_text


def _print_try(job: ServiceJob, number: int) -> None:
    if 1 < job.tries >= number:
        sys.stdout.flush()
        typer.echo(f"{job.id} was tried {job.tries} times; this is try {number} (--try selects another one)", err=True)


def metrics(job: JobArgument, json: AsJson = False) -> None:
    """Print the metrics of a job's runs: last value with its step, lowest and highest value."""
    found = _client().metrics(job)
    if json:
        import msgspec

        _print_json(msgspec.to_builtins(found))
        return
    if not any(run.metrics for run in found):
        typer.echo(
            f"no run of job {job} has reported metrics yet; call hopsml.report in the training function", err=True
        )
    from hopsml.cli.terminal import print_rows
    from hopsml.tracking.listing import number_text

    for run in found:
        print_plain(f"run {run.id}: {run.state}" + (f", trial {run.trial}" if run.trial else ""))
        rows: list[tuple[str, ...]] = [("metric", "last", "step", "lowest", "highest", "reports")]
        for one in run.metrics:
            rows.append((one.name, *map(number_text, (one.last, one.step, one.lowest, one.highest)), str(one.reports)))
        if run.metrics:
            print_rows(rows, numbers=rows[0][1:])


def cancel(job: JobArgument) -> None:
    """Cancel a job."""
    _print_change(_client().cancel(job), "is being cancelled")


def pause(job: JobArgument) -> None:
    """Pause a job: it releases its slots until it is resumed."""
    _print_change(_client().pause(job), "is being paused")


def resume(job: JobArgument) -> None:
    """Resume a paused job: it waits for slots again."""
    _print_change(_client().resume(job), "waits again")


def move(
    job: JobArgument,
    queue: Annotated[str | None, typer.Option(help="New queue. Default: unchanged.")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=100, help="New priority. Default: unchanged.")] = None,
) -> None:
    """Change the queue or the priority of a job."""
    if queue is None and priority is None:
        raise typer.BadParameter("give a new queue by --queue, or a new priority by --priority")
    _print_change(_client().move(job, queue=queue, priority=priority), "is being moved")


def clone(job: JobArgument) -> None:
    """Submit the same job again, with the same code, and print its id."""
    print(_client().clone(job).id)


def rm(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="Id of each job: NAME-NUMBER, or the number alone.")],
) -> None:
    """Delete the files of ended jobs from the server; their records and runs remain."""
    client = _client()
    for job in jobs:
        print(f"{client.remove(job).id}: its files are deleted")


def _print_change(job: ServiceJob, what: str) -> None:
    """Print the change of a job; exit with status 1 if the job had ended before."""
    if not job.state.is_final:
        print(f"{job.id} {what}")
        return
    typer.echo(f"{job.id} has already ended ({job.state}); `hopsml jobs clone {job.id}` submits it again", err=True)
    raise typer.Exit(1)


def _client() -> Client:
    from hopsml.client import Client

    return Client.of_environment()


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.encode(value).decode())


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def load_job_or_exit(job: str) -> JobSpec:
    """Load a job file; print its errors to stderr and exit with status 2 if it has any."""
    check_installed()
    from hopsml.errors import JobFileError
    from hopsml.service import spec

    try:
        return spec.load(job)
    except JobFileError as error:
        typer.echo("\n".join(error.problems), err=True)
        raise typer.Exit(WRONG) from None


def check_installed() -> None:
    """Raise ArgumentError if the extra ``service`` is not installed."""
    from importlib.util import find_spec

    from hopsml.core import extras
    from hopsml.errors import ArgumentError

    for name in ("pydantic", "croniter"):
        if find_spec(name) is None:
            raise ArgumentError(f"job files need {name}, which is not installed; {extras.install_command('service')}")
