"""Programs and libraries of MIT Kerberos: those of the machine, or Debian's packages unpacked into a cache folder.

Nothing is installed: ``apt-get download`` and ``dpkg -x`` do not require root, and no system service is started.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.hadoop.errors import HadoopError
from tools.hadoop.jars import CACHE, exclusive

KRB5_CACHE = CACHE.with_name("krb5")
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist", "kdestroy")
SYSTEM_PATH = "/usr/sbin:/sbin"  # Debian's folder of the KDC's programs; not on the PATH of every user
PACKAGES = ("krb5-kdc", "krb5-admin-server", "krb5-user", "libgssapi-krb5-2", "libverto-libev1")
# of all packages on which these depend; the rest is part of every Debian
NEEDED = re.compile(
    r"krb5-(kdc|admin-server|user)|lib(gssapi-krb5|krb5|k5crypto|gssrpc|kadm5|kdb5|verto1|verto-libev|ev4|ss2|com-err"
    r"|keyutils).*"
)
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Krb5:
    """Kerberos of this machine; ``root`` is the folder of unpacked packages, None for installed ones."""

    root: Path | None = None

    @property
    def libraries(self) -> Path | None:
        """Folder of the unpacked libraries, libgssapi_krb5.so.2 among them; None for installed ones."""
        found = sorted(self.root.glob("usr/lib/*/libgssapi_krb5.so.2")) if self.root else []
        return found[0].parent if found else None

    @property
    def modules(self) -> Path | None:
        """Folder for ``db_module_dir`` of kdc.conf; None for the compiled-in one."""
        return self.libraries / "krb5" / "plugins" / "kdb" if self.libraries else None

    def environment(self) -> dict[str, str]:
        """Return PATH with the programs and, for unpacked packages, LD_LIBRARY_PATH with their libraries."""
        path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
        if self.root is None or self.libraries is None:
            return {"PATH": path}
        before = os.environ.get("LD_LIBRARY_PATH", "")
        return {
            "PATH": f"{self.root}/usr/bin:{self.root}/usr/sbin:{path}",
            "LD_LIBRARY_PATH": f"{self.libraries}{':' if before else ''}{before}",
        }


def ensure_krb5(cache: Path = KRB5_CACHE) -> Krb5:
    """Return the installed Kerberos, or unpack Debian's packages into ``cache`` once and return that one.

    Raises HadoopError with the reason if the programs are neither installed nor could be fetched.
    """
    if _complete(Krb5()):
        return Krb5()
    cache.mkdir(parents=True, exist_ok=True)
    unpacked = Krb5(cache / "root")
    with exclusive(cache / "lock"):
        if not _complete(unpacked):
            fresh = cache / "root.new"
            shutil.rmtree(fresh, ignore_errors=True)
            _fetch(cache, fresh)
            shutil.rmtree(cache / "root", ignore_errors=True)
            fresh.rename(cache / "root")
    if not _complete(unpacked):
        raise HadoopError(f"Debian's packages {', '.join(PACKAGES)} lack a program of {', '.join(PROGRAMS)}. {REMEDY}")
    return unpacked


REMEDY = "Install them: apt-get install krb5-kdc krb5-admin-server krb5-user libgssapi-krb5-2"


def _complete(krb5: Krb5) -> bool:
    path = krb5.environment()["PATH"]
    if krb5.root and not (krb5.modules and krb5.modules.is_dir()):
        return False
    return all(shutil.which(program, path=path) for program in PROGRAMS)


def _fetch(cache: Path, target: Path) -> None:
    packages = cache / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    packages.mkdir()
    names = _closure(())
    own = () if names else _own_lists(cache / "apt")
    names = names or _closure(own)
    if not names:
        raise HadoopError(f"apt does not know the packages {', '.join(PACKAGES)}. {REMEDY}")
    _run(["apt-get", *own, "download", *names], packages)
    for package in sorted(packages.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(target)], packages)


def _own_lists(folder: Path) -> tuple[str, ...]:
    """Fetch apt's lists into a private folder, as this machine has none; return the options that select it."""
    (folder / "lists").mkdir(parents=True, exist_ok=True)
    options = ("-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache")
    _run(["apt-get", *options, "update"], folder)
    return options


def _closure(options: tuple[str, ...]) -> list[str]:
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    command = ["apt-cache", *options, "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *PACKAGES]
    try:
        listed = _run(command, Path("/")).split("\n")
    except HadoopError:
        return []
    return sorted({name for name in listed if NEEDED.fullmatch(name)})


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise HadoopError(f"{command[0]}: {error}. {REMEDY}") from None
    if done.returncode:
        raise HadoopError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}. {REMEDY}")
    return done.stdout
