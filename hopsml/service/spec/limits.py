"""How large a job file, and what it asks for, may be. A file over a limit is refused before it is looked at further."""

FILE_BYTES = 1 << 20  # of the YAML text
NODES = 200_000  # values and keys, with what aliases stand for counted each time
DEPTH = 20  # lists and tables in one another
ANCHORS = 64
ALIASES = 64
TEXT = 32_768  # characters of one value
PROBLEMS = 100  # that are listed; a file of nonsense need not print pages

TASKS = 1_000
WORKERS = 100_000  # of all tasks together
CORES = 1_024  # of a worker
GPUS = 64  # of a worker
MEMORY_MIB = 64 << 20  # of a worker: 64 TiB
LABELS = 64
VARIABLES = 1_000
PORTS = 16  # of a worker
SECRETS = 64
RETRIES = 100
TRIALS = 1_000_000
PARAMETERS = 1_000  # of a search
NESTED_VALUES = 1_000  # of a parameter: values that are lists or tables, which are compared with one another
DURATION_S = 366 * 86_400
