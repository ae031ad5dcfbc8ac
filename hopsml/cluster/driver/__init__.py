"""Driver side of a cluster: coordinator, capture of the user's function, and backends that provide agents."""
