"""Key distribution centre (KDC) of MIT Kerberos in a folder, with principals, keytabs and tickets.

    kdc = Kdc(folder)
    kdc.create(["nn/localhost", "alice"], ensure_krb5())   # database, a keytab for each name, a running KDC
    kdc.kinit("alice")                                     # ticket cache folder/alice.cc
    kdc.halt(); kdc.run()                                  # an outage
    kdc.destroy()                                          # ends it and deletes the folder

It listens on a loopback port of its own; nothing of the machine's Kerberos is read or changed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.guard import Guard, guard_for
from tools.hadoop import daemons
from tools.hadoop.errors import HadoopError
from tools.hadoop.krb5 import Krb5
from tools.hadoop.ports import free_ports
from tools.hadoop.settings import LOOPBACK

REALM = "LAB.TEST"
HOST = "localhost"  # the host of all services' principals
READY_TIMEOUT_S = 30.0
TICKET_S = 86400


class Kdc:
    """KDC with its files in ``folder``; it need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder).absolute()
        self._file = self.folder / "kdc.json"
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    # ------------------------------------------------------------------ properties

    @property
    def created(self) -> bool:
        """True if the folder contains a KDC's database."""
        return self._file.exists()

    @property
    def config(self) -> Path:
        """The file krb5.conf, for KRB5_CONFIG and ``-Djava.security.krb5.conf``."""
        return self.folder / "krb5.conf"

    @property
    def krb5(self) -> Krb5:
        """Programs and libraries that were selected at its creation."""
        root = self._state()["root"]
        return Krb5(Path(str(root)) if root else None)

    @property
    def alive(self) -> bool:
        """True if the KDC's process runs."""
        if self._child is not None:
            return self._child.poll() is None
        return bool(self._processes())

    def principal(self, name: str) -> str:
        """Return the full principal of a name such as ``alice`` or ``nn/localhost``."""
        return f"{name}@{REALM}"

    def keytab(self, name: str) -> Path:
        """Return the keytab of a principal's first component."""
        return self.folder / f"{name.split('/')[0]}.keytab"

    def cache(self, name: str) -> Path:
        """Return the ticket cache that ``kinit`` writes for a name unless another one is given."""
        return self.folder / f"{name.split('/')[0]}.cc"

    def environment(self, name: str = "") -> dict[str, str]:
        """Return the variables for a client; with a name its ticket cache, otherwise one that does not exist."""
        return {
            **self.krb5.environment(),
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self.cache(name) if name else self.folder / 'none.cc'}",
        }

    # ------------------------------------------------------------------ life

    def create(self, names: Sequence[str], krb5: Krb5, *, ticket_s: int = TICKET_S, guarded: bool = False) -> None:
        """Create the database with a random key and a keytab for each name, and start the KDC.

        Args:
            names: principals without realm; those with the same first component share a keytab.
            krb5: programs to use.
            ticket_s: life of a ticket unless ``kinit`` states another one.
            guarded: True to destroy it when this process ends, even by kill -9.

        Raises:
            HadoopError: a program failed or the KDC does not answer; then nothing is left running.
        """
        self.destroy()
        self.folder.mkdir(parents=True, mode=0o700)
        if guarded:
            self._guard = guard_for([sys.executable, "-m", "tools.hadoop.kdc", "destroy", str(self.folder)])
        (port,) = free_ports(1, LOOPBACK)
        self.config.write_text(_krb5_conf(port, ticket_s))
        (self.folder / "kdc.conf").write_text(_kdc_conf(self.folder, port, krb5.modules))
        self._write({"root": str(krb5.root) if krb5.root else ""})
        try:
            self._tool("kdb5_util", "create", "-s", "-r", REALM, "-P", "lab")
            self.add(*names)
            self.run()
        except BaseException:
            self.destroy()
            raise

    def add(self, *names: str) -> None:
        """Add principals, each with a random key in the keytab of its first component."""
        commands = [
            line for name in names for line in (f"addprinc -randkey {name}", f"ktadd -k {self.keytab(name)} {name}")
        ]
        self._tool("kadmin.local", "-r", REALM, text="\n".join(commands))
        missing = [name for name in names if not self.keytab(name).exists()]
        if missing:
            raise HadoopError(f"kadmin.local wrote no keytab for {', '.join(missing)}; {self.folder / 'log'} says why")

    def run(self) -> None:
        """Start the KDC's process; return when it answers. HadoopError if it runs already."""
        if self._processes():
            raise HadoopError(f"the KDC in {self.folder} runs already")
        with (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [*self._command("krb5kdc"), "-n", "-r", REALM, "-P", str(self.folder / "pid")],
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        name = self._file_names()[0]
        daemons.wait_until(f"KDC in {self.folder}", lambda: self._answers(name), READY_TIMEOUT_S)

    def halt(self, *, freeze: bool = False) -> None:
        """End the KDC's process, or stop it by SIGSTOP; ``run`` or ``resume`` continues it."""
        if freeze:
            self._send(signal.SIGSTOP)
            return
        daemons.kill_all(self._processes)
        if self._child is not None:
            self._child.wait()
            self._child = None

    def resume(self) -> None:
        """Continue a KDC that was frozen by ``halt``."""
        self._send(signal.SIGCONT)

    def destroy(self) -> None:
        """End the KDC and delete its folder; do nothing if there is none."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._guard:
            self._guard.dismiss()
            self._guard = None

    # ------------------------------------------------------------------ tickets

    def kinit(self, name: str, cache: Path | None = None, *, life_s: int = 0, renewable_s: int = 0) -> Path:
        """Obtain a ticket with the name's keytab, and return the ticket cache.

        Args:
            name: principal without realm.
            cache: file of the cache; by default ``cache(name)``.
            life_s: seconds of its life; by default that of the KDC.
            renewable_s: seconds for which it can be renewed; 0 for a ticket that cannot.
        """
        target = cache or self.cache(name)
        options = [*(("-l", f"{life_s}s") if life_s else ()), *(("-r", f"{renewable_s}s") if renewable_s else ())]
        self._tool("kinit", *options, "-kt", str(self.keytab(name)), "-c", f"FILE:{target}", name)
        return target

    def kdestroy(self, name: str) -> None:
        """Delete the name's ticket cache."""
        self.cache(name).unlink(missing_ok=True)

    # ------------------------------------------------------------------ parts

    def _answers(self, name: str) -> bool:
        if not self.alive:
            raise HadoopError((self.folder / "log").read_text(errors="replace")[-1000:])
        cache = self.folder / "probe.cc"
        self._tool("kinit", "-k", "-t", str(self.folder / f"{name}.keytab"), "-c", f"FILE:{cache}", self._any(name))
        cache.unlink()
        return True

    def _any(self, name: str) -> str:
        """Return a principal of a keytab."""
        lines = self._tool("klist", "-k", str(self.folder / f"{name}.keytab")).splitlines()
        return lines[-1].split()[-1]

    def _file_names(self) -> list[str]:
        found = sorted(path.stem for path in self.folder.glob("*.keytab"))
        if not found:
            raise HadoopError(f"no keytab in {self.folder}")
        return found

    def _tool(self, program: str, *arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [*self._command(program), *arguments], input=text, text=True, capture_output=True, timeout=30,
            env={**os.environ, **self.environment()}, cwd=self.folder,
        )  # fmt: skip
        with (self.folder / "log").open("a") as log:
            log.write(f"{program}: {done.stdout}{done.stderr}")
        if done.returncode:
            raise HadoopError(f"{program} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def _command(self, program: str) -> list[str]:
        found = shutil.which(program, path=self.krb5.environment()["PATH"])
        if found is None:
            raise HadoopError(f"{program} is not on the PATH; install Debian's packages krb5-kdc and krb5-user")
        return [found]

    def _processes(self) -> list[int]:
        """Return the KDC's processes by their command lines, which need no file that a killed starter has not written."""
        return daemons.with_argument(os.fsencode(self.folder / "pid"))

    def _send(self, number: signal.Signals) -> None:
        for pid in self._processes():
            daemons.send(pid, number)

    def _state(self) -> dict[str, object]:
        if not self._file.exists():
            raise HadoopError(f"no KDC in {self.folder}")
        state: dict[str, object] = json.loads(self._file.read_text())
        return state

    def _write(self, state: dict[str, object]) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(self._file)


def _krb5_conf(port: int, ticket_s: int) -> str:
    return f"""[libdefaults]
 default_realm = {REALM}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 ticket_lifetime = {ticket_s}s
 forwardable = true
[realms]
 {REALM} = {{
  kdc = {LOOPBACK}:{port}
 }}
[domain_realm]
 {HOST} = {REALM}
"""


def _kdc_conf(folder: Path, port: int, modules: Path | None) -> str:
    own_modules = f"[dbmodules]\n db_module_dir = {modules}\n" if modules else ""
    return f"""[kdcdefaults]
 kdc_listen = {LOOPBACK}:{port}
 kdc_tcp_listen = {LOOPBACK}:{port}
[realms]
 {REALM} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
  max_life = 1d
  max_renewable_life = 7d
  supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
 }}
{own_modules}"""


def main() -> int:
    """Destroy the KDC in the folder that the command line names: ``python -m tools.hadoop.kdc destroy FOLDER``."""
    if len(sys.argv) != 3 or sys.argv[1] != "destroy":
        print("usage: python -m tools.hadoop.kdc destroy FOLDER", file=sys.stderr)
        return 2
    Kdc(Path(sys.argv[2])).destroy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
