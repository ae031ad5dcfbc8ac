"""Data for the web page about the runs of a project, read from run directories only; independent of HTTP."""
