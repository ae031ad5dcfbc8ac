"""Add to the wheels in dist/ what a release needs: ``python -m tools.release``, called by ``make release``.

dist/hopsml*.tar.gz          source distribution
dist/hopsml-sbom.json        components that the core and each extra need, as pinned in requirements/dev.txt (CycloneDX)
dist/SHA256SUMS              checksums, for ``sha256sum --check``

It uses the environment of ``tools/build_wheel.py``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tools.build_wheel import DIST, PYTHON, ROOT, UV

SBOM = "hopsml-sbom.json"
SUMS = "SHA256SUMS"


def main() -> None:
    """Write the source distribution, the list of components and the checksums."""
    for old in (*DIST.glob("hopsml*.tar.gz"), DIST / SBOM, DIST / SUMS):
        old.unlink(missing_ok=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    command = [str(UV), "build", "--quiet", "--sdist", "--no-build-isolation", "--python", str(PYTHON)]
    subprocess.run(
        [*command, "--out-dir", str(DIST), str(ROOT)], check=True, env={**os.environ, "HOPSML_LIBRARIES": ""}
    )
    program = [str(PYTHON.with_name("cyclonedx-py")), "requirements", "requirements/dev.txt"]
    described = ["--pyproject", "pyproject.toml", "--output-reproducible", "--output-file", str(DIST / SBOM)]
    subprocess.run([*program, *described], check=True, cwd=ROOT)
    (DIST / SUMS).write_text(checksums(DIST), encoding="utf-8")
    print(f"release: {', '.join(sorted(path.name for path in files(DIST)))} and {SUMS}")


def files(folder: Path) -> list[Path]:
    """Return a release's files in order, without the checksums and what else the folder has."""
    return sorted(path for path in folder.rglob("hopsml*") if path.suffix in {".whl", ".gz", ".json"})


def checksums(folder: Path) -> str:
    """Return a line for each file of the release, as ``sha256sum`` prints it."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files(folder)
    )


if __name__ == "__main__":
    main()
