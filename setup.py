"""The native build, and the packages of a wheel; metadata is in pyproject.toml.

``make wheel`` (tools/build_wheel.py) names a folder of portable libraries in HOPSML_LIBRARIES, laid out like the packages;
an empty one gives the wheel for any platform. Without the variable what this machine can compile is compiled.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PROFILES = "hopsml.conf"  # edited in conf/ at the top of the repository, installed as hopsml/conf
PLUGIN = "hopsworks_plugin"  # the name that DAGs for the predecessor import


HERE = Path(__file__).parent
LIBRARIES = {"hopsml.collective": ["lib/*.so"], "hopsml.training.tensorflow": ["lib/*.so"]}  # of native/
LIBRARIES["hopsml.training.data"] = ["lib/*.jar", "lib/*.so"]
MIGRATIONS = {
    "hopsml.service.store": ["migrations/*.py", "migrations/versions/*.py"]
}  # alembic's, which imports none of them
PAGE = {
    "hopsml.service": [f"web/{place}" for place in ("*.*", "pages/*.js", "parts/*.js", "lib/*.*", "lib/licences/*.txt")]
}


GIVEN = os.environ.get("HOPSML_LIBRARIES")


def compile_native() -> None:
    """All of native/ that can be compiled here, where it is not current."""
    for tool in ("build_native.py", "build_spark_push.py"):
        subprocess.run([sys.executable, HERE / "tools" / tool], check=True)


def holds_libraries() -> bool:
    """Return True if the wheel has compiled code, so that it is for one platform."""
    return any(Path(GIVEN).rglob("*.so") if GIVEN else HERE.glob("hopsml/**/lib/*.so"))


class Project(Distribution):
    """Libraries belong to the folder of platform-specific packages, although none of them is an extension module."""

    def has_ext_modules(self) -> bool:
        """Return True if there are libraries."""
        return holds_libraries()


class BuildPy(build_py):
    """Compiles native/ where there is a compiler, TensorFlow's part of it where TensorFlow is installed.

    Takes the files of conf/ as data: modules would lose the permission to be executed, which Spark needs of a script.
    """

    def run(self) -> None:
        """Compile before files are collected, or replace what was compiled for this machine by the given libraries."""
        if not GIVEN:
            compile_native()
        super().run()
        if GIVEN:
            for own in Path(self.build_lib).glob("hopsml/**/lib/*.so"):
                own.unlink()
            shutil.copytree(GIVEN, self.build_lib, dirs_exist_ok=True)

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of a package, none for the profiles."""
        return [] if package == PROFILES else super().find_package_modules(package, package_dir)


class BdistWheel(bdist_wheel):
    """A wheel that holds libraries is of this kind of machine, and of any version of Python."""

    def run(self) -> None:
        """Not of this machine alone where nothing was compiled, which has to be known before files are laid out."""
        if not GIVEN:
            compile_native()
        self.root_is_pure = not holds_libraries()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Python's version and ABI do not matter: libraries are loaded by ctypes and TensorFlow."""
        platform = os.environ.get("HOPSML_PLATFORM") if GIVEN and not self.root_is_pure else None
        return "py3", "none", platform or super().get_tag()[2]


setup(
    distclass=Project,
    packages=[
        *find_packages(include=["hopsml", "hopsml.*"], exclude=["hopsml.airflow.hopsworks_plugin*"]),
        *find_packages("hopsml/airflow", include=[f"{PLUGIN}*"]),
        PROFILES,
    ],
    package_dir={PROFILES: "conf", PLUGIN: "hopsml/airflow/hopsworks_plugin"},
    package_data={
        "hopsml": ["py.typed"],
        **LIBRARIES,
        **PAGE,
        **MIGRATIONS,
        PROFILES: ["README.md", "*.yaml", "discover_gpus.py"],
    },
    cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel},
)
