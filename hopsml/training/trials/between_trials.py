"""Clean-up between two trials in one process: frameworks' state, random generators, remaining threads."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import os
import random
import sys
import threading

from hopsml.tracking import inputs


def seed_of(seed: int, number: int) -> int:
    """Return the random seed of trial ``number``, derived from the search's ``seed``; the same in every attempt."""
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def prepare() -> None:
    """Import modules that every runner would import otherwise, once, before runners are forked."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # takes 9 ms; numpy defers it to the first use


def sow(seed: int) -> None:
    """Seed the random generators of imported packages, and store the seed in ``HOPSML_SEED`` for others."""
    os.environ[inputs.SEED_VARIABLE] = str(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def clear() -> None:
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


def left_running() -> str:
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
