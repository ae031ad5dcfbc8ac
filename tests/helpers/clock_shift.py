"""Processes whose clock is off: a library, loaded before all others, that shifts the time of day by CLOCK_SHIFT_S seconds.

The monotonic clock and the times of files are the kernel's.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.helpers.clock import END_S

DAY_S = 86_400
HINDRANCE = "" if shutil.which("gcc") else "gcc is missing"
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift_s(void) {
  static long known, is_read;
  if (!is_read) {
    const char *text = getenv("CLOCK_SHIFT_S");
    known = text ? atol(text) : 0;
    is_read = 1;
  }
  return known;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift_s();
  return status;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec found;
  (void)zone;
  int status = clock_gettime(CLOCK_REALTIME, &found);
  if (now) { now->tv_sec = found.tv_sec; now->tv_usec = found.tv_nsec / 1000; }
  return status;
}

time_t time(time_t *where) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (where) *where = found.tv_sec;
  return found.tv_sec;
}
"""


def shifted(seconds: int, folder: Path) -> dict[str, str]:
    """Return the variables of a process whose clock is ``seconds`` ahead, or behind if negative.

    The library is built in ``folder`` unless it is there.
    """
    library = folder / "clock.so"
    if not library.exists():
        source = folder / "clock.c"
        source.write_text(_SOURCE)
        command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, timeout=END_S)
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT_S": str(seconds)}
