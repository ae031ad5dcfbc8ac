"""Limits of job files and of the resources they request; a file that exceeds one is refused."""

FILE_BYTES = 1 << 20  # length of the YAML text
NODES = 200_000  # values and keys; each alias counts as the values it refers to
DEPTH = 20  # nesting of lists and tables
ANCHORS = 64
ALIASES = 64
TEXT = 32_768  # characters of one value
PROBLEMS = 100  # problems that are listed for an invalid file

TASKS = 1_000
WORKERS = 100_000  # of all tasks together
CORES = 1_024  # per worker
GPUS = 64  # per worker
MEMORY_MIB = 64 << 20  # per worker: 64 TiB
LABELS = 64
VARIABLES = 1_000
PORTS = 16  # per worker
SECRETS = 64
DATASETS = 64
RETRIES = 100
TRIALS = 1_000_000
PARAMETERS = 1_000  # per search
NESTED_VALUES = 1_000  # per parameter: values that are lists or tables, which are compared with one another
DURATION_S = 366 * 86_400
