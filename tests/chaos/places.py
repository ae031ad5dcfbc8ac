"""Locations of scenarios: a scratch disk that is small or slow, and private networks. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.cluster.workloads import wait_until

SCRATCH, GROUP = "scratch", "memory-group"


@contextmanager
def short_notice(folder: Path) -> Iterator[None]:
    """A cluster whose warned nodes leave without time for successors."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOPSML_DRAIN_S", "0")
        yield


@contextmanager
def impatient(folder: Path) -> Iterator[None]:
    """Shorten the time limit of calls to the store."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOPSML_STORAGE_TIMEOUT_S", "3")
        yield


SLOW_WRITES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
/* What a disk of 1 MB/s does to its writers: files of one folder take their time. */
static int slow(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    const char *folder = getenv("HOPSML_TEST_SLOW_FOLDER");
    if (n <= 0 || folder == NULL) return 0;
    path[n] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}
ssize_t write(int fd, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    struct stat facts;
    if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && slow(fd)) usleep(2000 + size);
    return real(fd, data, size);
}
"""


def needs_root(*programs: str) -> None:
    """Skip without root, which mounts and namespaces need."""
    if os.geteuid() != 0:
        pytest.skip("mounting and making network namespaces needs root")
    if missing := [program for program in programs if shutil.which(program) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Use a file system of 8 MB as the agents' scratch folder."""
    needs_root("mount")
    scratch = folder / SCRATCH
    scratch.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "hopsml-test", str(scratch)], check=True)
    try:
        with _scratch_in(scratch):
            yield
    finally:
        subprocess.run(["umount", "--lazy", str(scratch)], check=True)


@contextmanager
def slow_disk(folder: Path) -> Iterator[None]:
    """Limit the agents' scratch folder to 1 MB/s, with a delay of 2 ms for each write."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    scratch, library = folder / SCRATCH, folder / "slow.so"
    scratch.mkdir()
    source = folder / "slow.c"
    source.write_text(SLOW_WRITES)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True, timeout=60)
    with _scratch_in(scratch), pytest.MonkeyPatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(library))
        environment.setenv("HOPSML_TEST_SLOW_FOLDER", str(scratch))
        yield


@contextmanager
def _scratch_in(scratch: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", str(scratch))
        environment.setattr(tempfile, "tempdir", None)
        yield


@contextmanager
def memory_limit(folder: Path, megabytes: int = 64) -> Iterator[None]:
    """Create a control group for ``limit_memory``; the kernel kills processes beyond its limit."""
    group = next((path for path in _memory_group_candidates() if os.access(path.parent, os.W_OK)), None)
    if group is None:
        pytest.skip("no memory control group can be made here")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        limit = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
        (group / limit).write_text(str(megabytes << 20))
        (folder / GROUP).symlink_to(group)
        yield
    finally:
        wait_until(lambda: _removed(group), "the end of all processes of the control group", 10)


def _memory_group_candidates() -> Iterator[Path]:
    """Return candidates of both control group versions below this process's group."""
    name = f"hopsml-test-{os.getpid()}"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory", name)
            yield Path("/sys/fs/cgroup/memory" + path, name)
        elif not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            yield Path("/sys/fs/cgroup" + path, name)


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:  # its processes are not buried yet
        return False
    return True


def limit_memory(folder: Path, pid: int) -> None:
    """Count this process's memory in the control group from now on."""
    (folder / GROUP / "cgroup.procs").write_text(str(pid))


def fill(folder: Path) -> None:
    """Write until the scratch disk is full."""
    with open(folder / SCRATCH / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
