"""What Linux has and other platforms of clients, such as macOS, lack, with a replacement where there is one."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import tempfile
import threading

_NAMES = {"Darwin": "macOS"}


def why_not_here(needs: str, remedy: str) -> str:
    """Return one sentence on what needs Linux, with the remedy; "" on Linux.

    Workers need it: they are forked from a process that has imported the framework, and end with their parent by a
    signal that the kernel sends.

    Args:
        needs: Beginning of the sentence, such as "workers need Linux".
        remedy: What to do instead.
    """
    here = platform.system()
    return "" if here == "Linux" else f"{needs}, and this is {_NAMES.get(here, here)}: {remedy}"


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def descriptor_path(descriptor: int) -> str:
    """Return a path by which this process can open one of its open files again.

    On macOS the position is shared with that of the descriptor.
    """
    return f"/proc/self/fd/{descriptor}" if platform.system() == "Linux" else f"/dev/fd/{descriptor}"


def nonblocking_pipe() -> tuple[int, int]:
    """Return the descriptors of a pipe, which child processes do not inherit: for reading, and for writing."""
    descriptors = os.pipe()
    for descriptor in descriptors:
        os.set_blocking(descriptor, False)
    return descriptors


def end_descriptor(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when a child process has ended; the caller closes it."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    ended, held = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(held)

    threading.Thread(target=wait, name=f"hopsml-end-of-{process.pid}", daemon=True).start()
    return ended


def hidden_file(content: bytes, name: str, at_end: contextlib.ExitStack) -> tuple[str, list[int]]:
    """Return a path for a child process to a file that other users cannot read, and the descriptors that it must inherit.

    On Linux the file is in memory, and disappears with the last process that has it open.

    Args:
        content: What the file contains.
        name: Beginning of the file's name.
        at_end: Closes or deletes the file.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        at_end.callback(os.close, descriptor)
        os.write(descriptor, content)
        return f"/dev/fd/{descriptor}", [descriptor]
    file = at_end.enter_context(tempfile.NamedTemporaryFile(prefix=f"{name}-"))  # noqa: SIM115 closed by the stack
    file.write(content)
    file.flush()
    return file.name, []
