"""The command line, and what checks, measures and tunes compiled functions."""
