"""Process that runs the trials of a trial slot (lane), forked from the lane or started as a module.

It calls the user's function for each trial that the lane sends, one after another. It exits after a trial that
failed, that required its own process, or that left threads or processes running; between two trials it releases what
frameworks retain and seeds the random generators. A lane that cannot fork starts
``python -m hopsml.training.trials.runner``.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec

from hopsml.cluster.shared.plain import argument_as_json, result_as_dict
from hopsml.cluster.worker import calling, returned
from hopsml.cluster.worker.context import WorkerContext, do_nothing, set_current
from hopsml.cluster.worker.returned import pickle_result
from hopsml.cluster.worker.worker import run_exit_functions
from hopsml.core import moved_names, processes, redact
from hopsml.core.newer_python import module_arguments
from hopsml.errors import ArgumentError, TrialStopped
from hopsml.search.messages import RunTrial, TrialBegan, TrialEnded
from hopsml.storage import urls
from hopsml.tracking import inputs
from hopsml.training.trials import trial_files, trial_reports
from hopsml.training.trials.lane_queue import RunnerRetired
from hopsml.training.trials.trial import Trial, bind_arguments
from hopsml.training.trials.trial_reports import LaneChannel, TrialReporter


def trial_seed(seed: int, number: int) -> int:
    """Return the random seed of trial ``number``, derived from the search's ``seed``; the same in every attempt."""
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def import_deferred_modules() -> None:
    """Import modules that every runner would import otherwise, once, before runners are forked."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # takes 9 ms; numpy defers it to the first use


def seed_generators(seed: int) -> None:
    """Seed the random generators of imported packages, and store the seed in ``HOPSML_SEED`` for others."""
    os.environ[inputs.SEED_VARIABLE] = str(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def release_frameworks() -> None:
    """Release what frameworks retain after a trial: graphs, layer names, compiled functions, memory."""
    for name in ("keras", "tf_keras"):
        framework = sys.modules.get(name)
        if framework is not None and hasattr(framework, "backend"):
            framework.backend.clear_session()
    if "keras" not in sys.modules and (tensorflow := sys.modules.get("tensorflow")):
        with contextlib.suppress(AssertionError):  # raised for a graph that the function has left open
            tensorflow.compat.v1.reset_default_graph()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def describe_left_running() -> str:
    """Describe processes and threads that the trial has left running and that must end with it; "" if there are none.

    Daemon threads may remain: progress bars and loggers use such threads, and they block nothing. hopsml's own
    threads that gather rows end by themselves.
    """
    while True:
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return "processes"
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
    own = (threading.main_thread(), threading.current_thread())
    others = [thread for thread in threading.enumerate() if thread not in own and not thread.daemon]
    threads = [thread.name for thread in others if not thread.name.startswith("hopsml-gather")]
    return f"threads ({', '.join(threads[:3])})" if threads else ""


@dataclass(frozen=True)
class RunnerOptions:
    """Settings shared by all trials of a search; ``payload`` is the pickled pair (function, keyword arguments)."""

    payload: bytes
    seed: int = 0
    log_to_lane: bool = False  # also copy a trial's output to the lane's log
    trials: str = "trials"  # folder of the trials' folders, below the run directory
    storage_timeout_s: float = 30.0


def become_runner(context: WorkerContext, options: RunnerOptions, connection: socket.socket, host: int) -> None:
    """Turn a forked child into a runner of process ``host``, which it does not outlive; never returns."""
    code = 1
    try:
        os.setsid()
        processes.die_with_parent(host)
        code = run_trials(context, options, connection)
    except BaseException:  # noqa: BLE001 the child must not return into the lane's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def spawn_runner(context: WorkerContext, options: RunnerOptions, connection: socket.socket) -> int:
    """Start a runner in a fresh interpreter, for a lane that has threads and cannot fork; return its pid."""
    plain = replace(
        context,
        commits=None,
        inbox=None,
        event_pipe=-1,
        send=do_nothing,
        say=do_nothing,
        note=do_nothing,
        progress=do_nothing,
    )
    setup = context.work_dir / "runner.pickle"
    setup.write_bytes(pickle.dumps((plain, asdict(options), tuple(sys.path))))
    os.set_inheritable(connection.fileno(), True)
    command = [
        sys.executable,
        *module_arguments("hopsml.training.trials.runner"),
        str(connection.fileno()),
        str(os.getpid()),
        str(setup),
    ]
    return os.posix_spawn(sys.executable, command, dict(os.environ), setsid=True)


def main() -> None:
    """Run a runner started by ``spawn_runner``; never returns."""
    descriptor, host, setup = sys.argv[1:]
    processes.die_with_parent(int(host))
    context, options, path = pickle.loads(Path(setup).read_bytes())
    sys.path += [entry for entry in path if entry not in sys.path]
    os._exit(run_trials(context, RunnerOptions(**options), socket.socket(fileno=int(descriptor))))


def run_trials(context: WorkerContext, options: RunnerOptions, connection: socket.socket) -> int:
    """Run trials until the lane closes the connection; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # the output of a killed trial is complete
    runner = Runner(context, options, LaneChannel(connection))
    while (message := runner.channel.get()) is not None:
        if isinstance(message, RunTrial):
            if runner.channel.end_request(message.number, message.attempt) is not None:
                runner.channel.send(TrialEnded(message.number, message.attempt, "withdrawn"))
            elif not runner.run_trial(message):
                break
    return run_exit_functions(0)


@dataclass
class _Trial:
    """State of the running trial."""

    message: RunTrial
    folder: Path
    reporter: TrialReporter
    began: float
    config: dict[str, Any]


class Runner:
    """Execution of trials one after another in this process; the user's function is unpickled for the first one."""

    def __init__(self, context: WorkerContext, options: RunnerOptions, channel: LaneChannel) -> None:
        self.context, self.options, self.channel = context, options, channel
        self._loaded: tuple[Callable[..., Any], dict[str, Any]] | None = None
        self._environment = dict(os.environ)

    def run_trial(self, message: RunTrial) -> bool:
        """Run one trial and return True if this process may run another."""
        began, before = time.time(), returned.stamps(self.context.work_dir)
        folder = trial_files.trial_folder(self.context, message.trial_id)
        log = _Output(folder / trial_files.log_name(self.context, message), self.options.log_to_lane)
        end: TrialEnded
        with log:
            end = self._try(message, folder, began)
            set_current(self.context)
            self._restore()
            self._keep_what_it_saved(folder, before)
            release_frameworks()
            left = describe_left_running()
        end = msgspec.structs.replace(
            end,
            seconds=round(time.time() - began, 6),
            checkpoint_step=trial_files.newest_checkpoint_step(folder / trial_files.CHECKPOINTS),
        )
        reusable = end.how != "failed" and not message.isolated and not left
        if left:
            self.channel.send(RunnerRetired(f"trial {message.trial_id} left {left} running"))
        self.channel.send(end)
        return reusable

    def _try(self, message: RunTrial, folder: Path, began: float) -> TrialEnded:
        """Prepare a trial and run it; return its end."""
        config: dict[str, Any] = {}
        try:
            trial_files.create_folders(folder)
            config = pickle.loads(message.config)
            trial_files.write_json(folder / ".hparams.json", argument_as_json(config))
            resume = trial_files.obtain_checkpoint(self.context, message, self.options.storage_timeout_s)
            trial = _Trial(message, folder, TrialReporter(message, self.channel, resume is not None), began, config)
            context = self._context(trial, resume)
            set_current(context)
            inputs.start_recording(context)
            seed_generators(trial_seed(self.options.seed, message.number))
        except Exception as error:  # noqa: BLE001 a trial that cannot be prepared has failed
            return self._failed(message, folder, error)
        return self._call(trial, context)

    def _call(self, trial: _Trial, context: WorkerContext) -> TrialEnded:
        """Call the user's function for a trial and record the outcome."""
        message, how, error = trial.message, "finished", ""
        metric: float | None = None
        result, value = b"", _NOTHING
        try:
            self.channel.send(TrialBegan(message.number, message.attempt, os.getpid()))
            function, fixed = self._function()
            calling.reset_argv(function)
            value = calling.call(function, bind_arguments(function, fixed, trial.config, trial.reporter))
            told = trial.reporter.history if value is None else []  # reported values replace a missing return value
            metric = told[-1][1] if told else trial_reports.score_of(value, message.metric)
            result = pickle_result(value, context, _note)
            self._write_outputs(trial, context, value, metric)
        except TrialStopped as stop:
            how = "paused" if stop.how == "pause" else "stopped"
        except BaseException as problem:  # noqa: BLE001 any exception of the function is recorded with its trial
            end = _without_metric(self._failed(message, trial.folder, problem), problem, value)
            error = end.error
            if not trial.reporter.told:
                self._write_end(trial, "failed", None, error)
                return end
        if trial.reporter.told:  # also if the function has caught TrialStopped, for instance to save something
            how = "paused" if trial.reporter.told == "pause" else "stopped"
        if metric is None and trial.reporter.history:
            metric = trial.reporter.history[-1][1]
        self._write_end(trial, how, metric, error)
        return TrialEnded(message.number, message.attempt, how, outputs=result)

    def _failed(self, message: RunTrial, folder: Path, error: BaseException) -> TrialEnded:
        """Print the traceback of a failed trial and return its end."""
        name = "traceback.log"
        url = urls.join(self.context.run_url.rstrip("/"), self.context.trials, message.trial_id, name)
        calling.report_traceback(error, folder / name, url)
        words = calling.short_error_text(error) + returned.missing_path_hint(error, Path.cwd())
        return TrialEnded(message.number, message.attempt, "failed", error=words)

    def _restore(self) -> None:
        """Undo what the next trial would inherit: environment variables and the working directory."""
        usual, found = self._environment, dict(os.environ)
        for name in found.keys() - usual.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in usual.items() if found.get(name) != value})
        os.chdir(self.context.work_dir)

    def _keep_what_it_saved(self, folder: Path, before: dict[Path, returned.Stamp]) -> None:
        """Link files that the trial has saved in the worker's folder into the trial's artifacts."""
        try:
            note = returned.store_files(self.context.work_dir, folder / trial_files.ARTIFACTS, before)
        except OSError as error:
            note = f"what was saved in the worker's folder is not kept: {error}"
        if note:
            _note(note)

    def _function(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the user's function and its fixed arguments, unpickled once."""
        if self._loaded is None:
            self._loaded = cast("tuple[Callable[..., Any], dict[str, Any]]", moved_names.loads(self.options.payload))
        return self._loaded

    def _context(self, trial: _Trial, resume: Path | None) -> WorkerContext:
        """Return the worker context of a trial: rank 0 in a group of 1, with the trial's own folders."""
        message, folder = trial.message, trial.folder
        root = self.context.logdir.removesuffix("/events")
        port = Trial(
            number=message.number,
            trial_id=message.trial_id,
            config=dict(trial.config),
            checkpoint_dir=folder / trial_files.CHECKPOINTS,
            resume_checkpoint=resume,
            done_step=message.done_step,
            attempt=message.attempt,
            folder=folder,
        )
        return replace(
            self.context,
            rank=0,
            world_size=1,
            role="chief",
            events_dir=folder / trial_files.EVENTS,
            checkpoint_dir=folder / trial_files.CHECKPOINTS,
            export_dir=folder / trial_files.EXPORT,
            logdir=urls.join(root, self.context.trials, message.trial_id, trial_files.EVENTS),
            resume_checkpoint=resume,
            commits=None,
            inbox=None,
            trial=port,
            send=lambda said: trial.reporter.report(said.get("step"), said.get("metrics", {})),
            say=do_nothing,
            note=_note,
            progress=do_nothing,
        )

    def _write_outputs(self, trial: _Trial, context: WorkerContext, value: Any, metric: float) -> None:
        """Write the function's return value and the metric to the trial's folder."""
        name = trial_files.log_name(context, trial.message)
        log = urls.join(context.run_url.rstrip("/"), context.trials, trial.message.trial_id, name)
        trial_files.write_json(trial.folder / ".outputs.json", result_as_dict(value, log))
        trial_files.write_text(trial.folder / ".metric", str(metric))

    def _write_end(self, trial: _Trial, how: str, metric: float | None, error: str) -> None:
        """Write the record of the trial's end, and TensorBoard's HParams if it is used."""
        trial_files.write_trial_record(
            trial.folder,
            trial.message,
            trial.config,
            how=how,
            error=error,
            metric=metric,
            history=trial.reporter.history,
            began=trial.began,
        )
        if trial_files.has_tensorboard():
            step = trial.reporter.history[-1][0] if trial.reporter.history else 0
            events = trial.folder / trial_files.EVENTS
            try:
                config = redact.arguments(trial.config)
                trial_files.write_hparams(events, trial.message.trial_id, config, trial.message.metric, metric, step)
            except (ImportError, OSError, ValueError, TypeError) as problem:
                print(f"hopsml: TensorBoard's HParams are not written: {problem}", file=sys.stderr)


_NOTHING = object()  # value of a function that has not returned


def _without_metric(end: TrialEnded, problem: BaseException, value: Any) -> TrialEnded:
    """Return the end of a failed trial, marked as without the metric if that is why the returned value is refused."""
    if value is _NOTHING or not isinstance(problem, ArgumentError):
        return end
    names = tuple(map(str, value)) if isinstance(value, dict) else ()
    return msgspec.structs.replace(end, lacks_metric=True, names=names)


class _Output:
    """Context manager that redirects the process's output, native code's included, to a file."""

    def __init__(self, path: Path, to_lane: bool) -> None:
        self._path, self._to_lane = path, to_lane

    def __enter__(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._usual = os.dup(1), os.dup(2)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._began = os.fstat(descriptor).st_size
        _flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def __exit__(self, *_: object) -> None:
        _flush()
        for descriptor, stream in zip(self._usual, (1, 2), strict=True):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        if self._to_lane:
            with open(self._path, "rb") as log:
                log.seek(self._began)
                with contextlib.suppress(OSError):  # the lane's log may be full; the trial has its own log
                    while piece := log.read(1 << 16):
                        os.write(1, piece)


def _note(text: str) -> None:
    """Write a note to the trial's log."""
    print(f"hopsml: {text}", file=sys.stderr)


def _flush() -> None:
    """Flush the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed by the function
            pass


if __name__ == "__main__":
    main()
