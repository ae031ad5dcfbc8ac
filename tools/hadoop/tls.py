"""HTTPS for the local cluster: key and certificate of its web services, and the settings that it changes.

create(folder, hosts)                            # by the JDK's keytool
with_https(settings, folder, "nn")               # pure
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path

from tools.hadoop.errors import HadoopError
from tools.hadoop.settings import Settings

PASSWORD = "changeit"  # Java's own default; the folder is readable by its user only
_FORMAT = "PKCS12"
_ALIAS = "web"
_DAYS = 30
# With HTTPS_ONLY a daemon reads the second; without the first, whoever still uses HTTP finds no address.
_HTTPS_KEYS = {
    "dfs.namenode.http-address": "dfs.namenode.https-address",
    "dfs.datanode.http.address": "dfs.datanode.https.address",
    "dfs.journalnode.http-address": "dfs.journalnode.https-address",
    "yarn.resourcemanager.webapp.address": "yarn.resourcemanager.webapp.https.address",
    "yarn.nodemanager.webapp.address": "yarn.nodemanager.webapp.https.address",
}


def certificate(folder: Path) -> Path:
    """Return the PEM file with the certificate of the web services, for HOPSML_CA_BUNDLE and curl."""
    return folder / "ca.pem"


def keystore(folder: Path) -> Path:
    """Return the file with key and certificate."""
    return folder / "keystore.p12"


def truststore(folder: Path) -> Path:
    """Return the file with the certificate alone, for clients in Java."""
    return folder / "truststore.p12"


def create(folder: Path, hosts: Collection[str]) -> None:
    """Create key and certificate of all web services, and the files by which clients trust it.

    Args:
        folder: is created; only its user may read it.
        hosts: names and IPv4 addresses of the web services.

    Raises:
        HadoopError: keytool failed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in (keystore(folder), truststore(folder), certificate(folder)):
        file.unlink(missing_ok=True)
    names = ",".join(f"{'ip' if host[0].isdigit() else 'dns'}:{host}" for host in sorted(hosts))
    key = ["-keyalg", "EC", "-groupname", "secp256r1", "-validity", str(_DAYS), "-dname", "CN=hopsml's local cluster"]
    pem = certificate(folder)
    _keytool(keystore(folder), "-genkeypair", *key, "-ext", f"SAN={names}")
    _keytool(keystore(folder), "-exportcert", "-rfc", "-file", str(pem))
    _keytool(truststore(folder), "-importcert", "-noprompt", "-file", str(pem))


def _keytool(store: Path, what: str, *arguments: str) -> None:
    command = ["keytool", what, "-keystore", str(store), "-storetype", _FORMAT, "-alias", _ALIAS, *arguments]
    done = subprocess.run([*command, "-storepass", PASSWORD], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise HadoopError(f"keytool {what} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}")


def with_https(settings: Settings, folder: Path, name: str) -> Settings:
    """Return the settings of a daemon, or of ``client``, with HTTPS_ONLY and the same ports for HTTPS. Pure.

    Args:
        settings: those of a cluster whose web services use HTTP.
        folder: folder of ``create``.
        name: the daemon's name.
    """
    changed = {file: {_https_key(key): value for key, value in rows.items()} for file, rows in settings.items()}
    changed["hdfs-site.xml"]["dfs.http.policy"] = "HTTPS_ONLY"
    changed["yarn-site.xml"]["yarn.http.policy"] = "HTTPS_ONLY"
    changed["ssl-client.xml"] = _store("ssl.client.truststore", truststore(folder))
    if name != "client":
        changed["ssl-server.xml"] = {
            **_store("ssl.server.truststore", truststore(folder)),
            **_store("ssl.server.keystore", keystore(folder)),
            "ssl.server.keystore.keypassword": PASSWORD,
        }
    return changed


def _https_key(key: str) -> str:
    """Return the key of the HTTPS address for that of an HTTP address, which may end in the name of a service."""
    for http, https in _HTTPS_KEYS.items():
        if key == http or key.startswith(f"{http}."):
            return https + key[len(http) :]
    return key


def _store(prefix: str, file: Path) -> dict[str, object]:
    return {f"{prefix}.location": file, f"{prefix}.password": PASSWORD, f"{prefix}.type": _FORMAT}
