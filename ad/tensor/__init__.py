"""Reverse mode on tensor functions: versions of variables, index statements, split pairs."""
