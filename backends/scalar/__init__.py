"""Scalar functions for Python.

The C backend's file gets an entry for each function, which a pybind11 extension, compiled once for
all modules, calls by its address. What Python passes is described by records (:mod:`records`).
"""

from __future__ import annotations

from loma.backends.scalar.build import build, extension
from loma.backends.scalar.entries import TAKE_FAILURE, entry_name, generate
from loma.backends.scalar.records import function_record, struct_records

__all__ = [
    "TAKE_FAILURE", "build", "entry_name", "extension", "function_record", "generate",
    "struct_records",
]  # fmt: skip
