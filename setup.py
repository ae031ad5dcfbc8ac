"""Package metadata; tool settings are in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

CORE = [
    "cloudpickle>=3.1",
    "cryptography>=44",
    "fsspec>=2025.1",
    "google-crc32c>=1.6",
    "hdfs>=2.7",
    "hdfs-native>=0.14.7",
    "msgspec>=0.19",
    "numpy>=1.26",
    "nvidia-ml-py>=12",
    "psutil>=6",
    "pyarrow>=17",
    "pyyaml>=6",
    "rich>=13",
    "typer>=0.15",
    "uvloop>=0.21",
    "websockets>=15",
]
EXTRAS = {
    "spark": ["pyspark>=4.0,<5"],
    "tensorflow": ["tensorflow>=2.21,<2.22", "keras>=3.12", "tensorboard>=2.20"],
    "tensorflow-cpu": ["tensorflow-cpu>=2.21,<2.22", "keras>=3.12", "tensorboard>=2.20"],
    "airflow": ["apache-airflow-core>=3.3,<4", "apache-airflow-task-sdk", "apache-airflow-providers-standard"],
    "notebook": ["ipykernel>=6", "jupyterlab>=4.4", "jupyter-server-proxy>=4.4", "tensorboard>=2.20"],
    "mlflow": ["mlflow-skinny>=3,<4"],
    "serving": ["httptools>=0.6", "orjson>=3.10", "uvicorn>=0.30"],
    "service": [
        *("alembic>=1.14", "authlib>=1.7", "croniter>=6", "fastapi>=0.115", "joserfc>=1.4"),
        *("psycopg[binary]>=3.2", "pydantic>=2.10,<3", "requests>=2.32"),
        *("sqlalchemy>=2.0,<3", "starlette>=0.46", "uvicorn>=0.30"),
    ],
    "aws": ["boto3>=1.35"],
    "onnx": ["onnx>=1.19", "onnxruntime>=1.23", "onnxscript>=0.5", "skl2onnx>=1.19"],
    "search": [
        *("optuna>=4", "cmaes>=0.11", "scipy>=1.15", "threadpoolctl>=3.5", "scikit-learn>=1.5"),
        *("pandas>=2", "plotly>=6"),
    ],
    "profiling": ["py-spy>=0.4"],
    "tracing": ["opentelemetry-sdk>=1.30", "opentelemetry-exporter-otlp-proto-http>=1.30"],
    "demo": ["scikit-learn>=1.5"],
}

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


def compile_native() -> None:
    """All of native/ that can be compiled here, where it is not current."""
    for tool in ("build_native.py", "build_spark_push.py"):
        subprocess.run([sys.executable, HERE / "tools" / tool], check=True)


class BuildPy(build_py):
    """Compiles native/ where there is a compiler, TensorFlow's part of it where TensorFlow is installed.

    Takes the files of conf/ as data: modules would lose the permission to be executed, which Spark needs of a script.
    """

    def run(self) -> None:
        """Compile before files are collected."""
        compile_native()
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of a package, none for the profiles."""
        return [] if package == PROFILES else super().find_package_modules(package, package_dir)


class BdistWheel(bdist_wheel):
    """A wheel that holds libraries is of this kind of machine, and of any version of Python."""

    def run(self) -> None:
        """Not of this machine alone where nothing was compiled, which has to be known before files are laid out."""
        compile_native()
        self.root_is_pure = not any(HERE.glob("hopsml/**/lib/*.so"))
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Python's version and ABI do not matter: libraries are loaded by ctypes and TensorFlow."""
        return "py3", "none", super().get_tag()[2]


setup(
    name="hopsml",
    version="0.1.0",
    description="Distributed TensorFlow training on Spark executors, with results on shared HDFS",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
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
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["hopsml=hopsml.cli:main"],
        "apache_airflow_provider": ["provider_info=hopsml.airflow.provider:get_provider_info"],
    },
)
