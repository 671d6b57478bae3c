"""The version, which setup.py reads, too."""

VERSION = "0.1.0"
