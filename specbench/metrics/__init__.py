"""Numbers as pure functions of a trace (numpy and scipy only). Every public module is a metric group."""

METRICS_VERSION = "1"  # changes whenever a definition changes; written into every record
