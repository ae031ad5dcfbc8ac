"""Runtime of runs: driver, agents, fork servers and workers, one package per process."""
