"""``hopsml job submit|run|ls|show|why|logs|cancel|pause|resume|move|clone``: jobs of a service."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.cli.job_files import loaded_job
from hopsml.cli.terminal_text import print_plain

if TYPE_CHECKING:
    from pathlib import Path

    from hopsml.client import Client, JobRun, ServiceJob, ServiceJobDetail

JobArgument = Annotated[str, typer.Argument(help="a job: NAME-NUMBER, or the number alone")]
AsJson = Annotated[bool, typer.Option("--json", help="one line of JSON")]


def register(app: typer.Typer) -> None:
    """Add the commands that speak with a service."""
    for command in (submit, run, ls, show, why, logs, metrics, cancel, pause, resume, move, clone, rm):
        app.command()(command)


def submit(
    job: Annotated[str, typer.Argument(help="a job file")],
    wait: Annotated[
        bool, typer.Option("--wait", help="show its log, and end with it: exit status 0 if it finished")
    ] = False,
    key: Annotated[str | None, typer.Option(help="of two submissions with the same key there is one job")] = None,
) -> None:
    """Queue a job, or make its schedule, where it has one; the code that it names is uploaded. Prints the id."""
    if key is not None and not key.strip():
        raise typer.BadParameter("--key is empty: name this submission by it, or leave it out")
    if loaded_job(job).schedule is not None:
        print(_client().put_schedule(job).id)
        return
    _submitted(_client().submit(job, idempotency_key=key or ""), wait)


def run(
    script: Annotated[str, typer.Argument(help="a script, or FILE.py:FUNCTION")],
    workers: Annotated[int, typer.Option(min=1, help="how many")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of one worker")] = 0,
    cores: Annotated[int, typer.Option(min=1, help="cores of one worker")] = 1,
    memory: Annotated[str, typer.Option(help="of one worker: 512m, 16g")] = "1g",
    queue: Annotated[str, typer.Option(help="where it waits")] = "default",
    priority: Annotated[int, typer.Option(min=1, max=100, help="1 to 100, higher is more urgent")] = 50,
    name: Annotated[str, typer.Option(help="what people call it; the script's name else")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="show its log, and end with it")] = False,
) -> None:
    """Queue a script without a job file; the folder it lies in is uploaded."""
    import tempfile
    from pathlib import Path

    import yaml

    from hopsml.errors import ArgumentError, JobFileError

    file, colon, function = script.partition(":")
    path = Path(file).absolute()
    _check_script(path, file, function if colon else None)
    what = {"function": f"{path.name}:{function}"} if function else {"script": path.name}
    task = {**what, "count": workers, "resources": {"cores": cores, "gpus": gpus, "memory": memory}}
    called = name or re.sub("[^a-z0-9]", "-", path.stem.lower())[:63].strip("-") or "job"
    asked = {
        "name": called,
        "queue": queue,
        "priority": priority,
        "workspace": str(path.parent),
        "tasks": {"main": task},
    }
    with tempfile.TemporaryDirectory(prefix="hopsml-job-") as folder:
        job_file = Path(folder, "job.yaml")
        job_file.write_text(yaml.safe_dump(asked))
        try:
            submitted = _client().submit(job_file)
        except JobFileError as error:  # which nobody has seen
            raise ArgumentError("; ".join(problem.partition(": ")[2] for problem in error.problems)) from None
    _submitted(submitted, wait)


def _check_script(path: Path, given: str, function: str | None) -> None:
    """Raise ArgumentError for what is no script of Python; ``function``: what stands behind the colon, None without one."""
    from hopsml import suggestions
    from hopsml.errors import ArgumentError

    if path.is_dir():
        raise ArgumentError(f"{given} is a folder: name a script in it, such as {given.rstrip('/')}/train.py")
    if path.suffix != ".py":
        raise ArgumentError(
            f"{given}: a script's name ends in .py; what is no Python runs by a job file with command: `hopsml job submit`"
        )
    if not path.is_file():
        there = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
        meant = suggestions.instead(path.name, there, "name one that is there")
        raise ArgumentError(f"there is no script {given}; {meant}")
    if function is not None and not function.isidentifier():
        raise ArgumentError(f"{given}:{function}: behind the colon stands a function's name: write {given}:main")


def _submitted(job: ServiceJob, wait: bool) -> None:
    print(job.id, flush=True)
    if job.why:
        print_plain(job.why, to_stderr=True)
    if not wait:
        return
    from hopsml.states import Lifecycle

    client = _client()
    try:
        _print_log(_followed(client, job.id))
    except KeyboardInterrupt:
        follows, ends = f"hopsml job logs -f {job.id}", f"hopsml job cancel {job.id}"
        typer.echo(f"{job.id} goes on without you: `{follows}` follows it, `{ends}` ends it", err=True)
        raise
    ended = client.job(job.id)
    print_plain(f"{ended.id}: {ended.state}: {ended.cause}", to_stderr=True)
    raise typer.Exit(0 if ended.state == Lifecycle.FINISHED else 1)


def ls(
    all_: Annotated[bool, typer.Option("--all", help="those that are over, too")] = False,
    owner: Annotated[str, typer.Option(help="of whom")] = "",
    queue: Annotated[str, typer.Option(help="of which queue")] = "",
    text: Annotated[str, typer.Option(help="a part of the name")] = "",
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 100,
    json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    from hopsml.states import Lifecycle

    states = () if all_ else tuple(state for state in Lifecycle if not state.is_final)
    found = _client().jobs(states=states, owner=owner, queue=queue, text=text, limit=limit)
    if json:
        _print_json(found)
        return
    if not found:
        print("no jobs" if all_ else "no jobs that are not over; --all lists the others, too")
        return
    from hopsml.cli.rows import print_rows

    rows = [("job", "state", "owner", "queue", "priority", "age", "cause")]
    for job in found:
        age = _duration(time.time() - job.submitted_s)
        rows.append((job.id, str(job.state), job.owner, job.queue, str(job.priority), age, job.cause))
    print_rows(rows, numbers=("priority", "age"), wraps="cause")


def show(job: JobArgument, json: AsJson = False) -> None:
    """Show all that is known of a job: how it stands, why it waits, what was started for it, what has happened."""
    client = _client()
    found = client.job(job)
    made, untold = _runs(client, job)
    if json:
        import msgspec

        _print_json({**msgspec.to_builtins(found), "runs": made})
        return
    print_plain(f"{found.id}: {found.state}: {found.cause}")
    if found.why:
        print_plain(f"why: {found.why}")
    print_plain(f"{found.owner}, queue {found.queue}, priority {found.priority}, profile {found.profile}")
    for one in found.applications:
        print_plain(
            f"task {one.task}: {one.state} {one.application_id or one.tag}" + (f": {one.cause}" if one.cause else "")
        )
    for size in found.sizes:
        if size.slots and size.fewest < size.most:
            back = f", {size.slots - size.target} of which it is about to give back" if size.target < size.slots else ""
            print_plain(f"task {size.task}: {size.slots} of {size.fewest} to {size.most} slots{back}")
    for run in made:
        metric = f": {run.metric_name} {run.metric:g}" if run.metric is not None else ""
        print_plain(f"run {run.id}: {run.state}{metric}")
    if untold:
        print_plain(f"runs: {untold}")
    print_plain("\n" + found.spec.rstrip() + "\n")
    for change in client.changes(job):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.at_s))
        print_plain(f"{at}  {f'{change.task}: ' if change.task else ''}{change.state}  {change.cause}".rstrip())


def _runs(client: Client, job: str) -> tuple[list[JobRun], str]:
    """The runs of a job; why they cannot be told, where the project cannot be read."""
    from hopsml.errors import ServiceError

    try:
        return client.runs(job), ""
    except ServiceError as error:
        return [], str(error)


def why(job: JobArgument) -> None:
    """Say why a job does not run: what it needs, what is free, who holds the rest, what would help; or its slots."""
    client = _client()
    found = client.job(job)
    print_plain(found.why or f"{found.state}: {found.cause}")


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on until the job is over")] = False,
    task: Annotated[str, typer.Option(help="the task whose driver is shown; default: all tasks")] = "",
    number: Annotated[
        int | None, typer.Option("--try", min=1, help="of which try of the job, from 1 on; of the newest one else")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="what this worker of its newest run has printed, not the driver")
    ] = None,
    run: Annotated[str, typer.Option(help="with --rank: of this run; `hopsml job show` lists them")] = "",
) -> None:
    """Print what the driver of a job has printed; of a job that was tried again, which try it is stands on stderr.

    A terminal gets none of what would move its cursor or change its title.
    """
    if follow and number is not None:
        raise typer.BadParameter("--follow goes on to the newest try: leave --try out, or --follow")
    if rank is None and run:
        raise typer.BadParameter("--run names the run whose worker --rank is: add --rank")
    if rank is not None and number is not None:
        raise typer.BadParameter("--try is of drivers; of workers --run names the run")
    client = _client()
    if rank is not None:
        _print_log(f"{line}\n" for line in client.rank_log(job, rank, task, run, follow=follow))
        return
    if follow:
        _print_log(_followed(client, job, task))
        return
    found = client.job(job)
    _tell_try(found, number or found.tries)
    tasks = [task] if task else _tasks(found)
    for one in tasks:
        if len(tasks) > 1:
            print_plain(f"==> task {one} <==")
        _print_log(_printed(client, job, one, number or max(1, found.tries)))


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
    heard: SimpleQueue[tuple[str, str | BaseException | None]] = SimpleQueue()

    def follow(name: str) -> None:
        try:
            for piece in client.follow(job, name):
                heard.put((name, piece))
            heard.put((name, None))
        except BaseException as error:  # noqa: BLE001 raised below, by the thread that prints
            heard.put((name, error))

    for name in tasks:
        threading.Thread(target=follow, args=(name,), daemon=True).start()
    rests = dict.fromkeys(tasks, "")
    while rests:
        name, piece = heard.get()
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


def _print_log(pieces: Iterable[str]) -> None:
    from hopsml.cli.terminal_text import harmless

    for text in harmless(pieces) if sys.stdout.isatty() else pieces:
        print(text, end="", flush=True)


def _tell_try(job: ServiceJob, number: int) -> None:
    if 1 < job.tries >= number:
        sys.stdout.flush()
        typer.echo(f"{job.id} was tried {job.tries} times; this is try {number} (--try names another one)", err=True)


def metrics(job: JobArgument, json: AsJson = False) -> None:
    """Print what the runs of a job have reported: of each metric the last value, its step, the lowest and the highest."""
    found = _client().metrics(job)
    if json:
        import msgspec

        _print_json(msgspec.to_builtins(found))
        return
    if not any(run.metrics for run in found):
        typer.echo(f"no run of job {job} has reported anything yet (hopsml.report in the training function)", err=True)
    from hopsml.cli.rows import print_rows
    from hopsml.tracking.listing import figure

    for run in found:
        print_plain(f"run {run.id}: {run.state}" + (f", trial {run.trial}" if run.trial else ""))
        rows: list[tuple[str, ...]] = [("metric", "last", "step", "lowest", "highest", "reports")]
        for one in run.metrics:
            rows.append((one.name, *map(figure, (one.last, one.step, one.lowest, one.highest)), str(one.reports)))
        if run.metrics:
            print_rows(rows, numbers=rows[0][1:])


def cancel(job: JobArgument) -> None:
    """End a job for good."""
    _told(_client().cancel(job), "is being cancelled")


def pause(job: JobArgument) -> None:
    """Let a job give its slots back until it is resumed."""
    _told(_client().pause(job), "is being paused")


def resume(job: JobArgument) -> None:
    """Let a paused job wait for its slots again."""
    _told(_client().resume(job), "waits again")


def move(
    job: JobArgument,
    queue: Annotated[str | None, typer.Option(help="another queue")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=100, help="another priority")] = None,
) -> None:
    """Give a job another queue, or another priority."""
    if queue is None and priority is None:
        raise typer.BadParameter("name another queue by --queue, or another priority by --priority")
    _told(_client().move(job, queue=queue, priority=priority), "is being moved")


def clone(job: JobArgument) -> None:
    """Queue the same job once more, with the same code. Prints its id."""
    print(_client().clone(job).id)


def rm(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="a job's id, or its number")],
) -> None:
    """Delete the files of ended jobs from the server; their records and runs are retained."""
    client = _client()
    for job in jobs:
        print(f"{client.remove(job).id}: its files are deleted")


def _told(job: ServiceJob, what: str) -> None:
    """Say what becomes of a job; one that was over before has exit status 1."""
    if not job.state.is_final:
        print(f"{job.id} {what}")
        return
    typer.echo(
        f"{job.id}: it is over ({job.state}), and stays so; `hopsml job clone {job.id}` queues it once more", err=True
    )
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
