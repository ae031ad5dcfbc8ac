"""Simulation of a power failure for a process: rebuilds its folder with the synced data only.

A preloaded library intercepts each fsync and fdatasync that succeeds, and copies the file at that moment, or the names of a
folder. ``rebuild`` creates a folder from these copies: a file that was never synced is empty, and a name is missing if its
folder was not synced with it. It works for all writes of the process, by SQLite as well as Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SHADOW = "HOPSML_TEST_SHADOW"
_SOURCE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void copy(int fd, const struct stat *status, FILE *out) {
    char piece[65536];
    off_t at = 0;
    ssize_t length;
    if (S_ISDIR(status->st_mode)) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        DIR *folder = opendir(path);
        struct dirent *entry;
        while (folder && (entry = readdir(folder)))
            fprintf(out, "%lu %c %s\n", entry->d_ino, entry->d_type == DT_DIR ? 'd' : 'f', entry->d_name);
        if (folder) closedir(folder);
        return;
    }
    snprintf(piece, sizeof piece, "/proc/self/fd/%d", fd);  /* SQLite's own may be for writing alone */
    FILE *in = fopen(piece, "rb");
    while (in && (length = pread(fileno(in), piece, sizeof piece, at)) > 0) at += fwrite(piece, 1, length, out);
    if (in) fclose(in);
}

static int synced(int fd, int done) {
    const char *shadow = getenv("HOPSML_TEST_SHADOW");
    struct stat status;
    char path[4096], fresh[4096];
    if (done || !shadow || fstat(fd, &status)) return done;
    snprintf(path, sizeof path, "%s/%lu", shadow, status.st_ino);
    snprintf(fresh, sizeof fresh, "%s.%d.%lu.new", path, fd, (unsigned long)gettid());
    FILE *out = fopen(fresh, "wb");
    if (!out) return done;
    copy(fd, &status, out);
    fclose(out);
    rename(fresh, path);
    return done;
}

int fsync(int fd) { return synced(fd, ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd)); }
int fdatasync(int fd) { return synced(fd, ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd)); }
"""


class ForgetfulDisk:
    """Record of the data synced by processes that are started with ``variables``."""

    def __init__(self, folder: Path) -> None:
        """Build the library in a separate folder; skip the test if there is no compiler."""
        if (compiler := shutil.which("gcc") or shutil.which("cc")) is None:
            pytest.skip("no C compiler")
        self._shadow, library, source = folder / "shadow", folder / "power_loss.so", folder / "power_loss.c"
        self._shadow.mkdir(parents=True)
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.variables = {"LD_PRELOAD": str(library), SHADOW: str(self._shadow)}

    def rebuild(self, folder: Path, target: Path) -> Path:
        """Create ``target`` with the content of ``folder`` after a power failure now; its writers must be stopped.

        It is an error if the folder's own name was not synced.
        """
        names = [line.split(" ", 2) for line in self._of(folder.parent.stat().st_ino).decode().splitlines()]
        assert ["d", folder.name] in [line[1:] for line in names], f"{folder.parent} was not synced with {folder.name}"
        self._fill(folder.stat().st_ino, target)
        return target

    def _fill(self, number: int, target: Path) -> None:
        target.mkdir(mode=0o700)
        for line in self._of(number).decode().splitlines():
            inner, kind, name = line.split(" ", 2)
            if kind == "d" and name not in (".", ".."):
                self._fill(int(inner), target / name)
            elif kind == "f":
                (target / name).write_bytes(self._of(int(inner)))
                os.chmod(target / name, 0o700)

    def _of(self, number: int) -> bytes:
        copied = self._shadow / str(number)
        return copied.read_bytes() if copied.exists() else b""
