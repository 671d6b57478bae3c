"""Scalar functions as Python callables.

The C backend's file gets an entry for each function, which a pybind11 extension, compiled once for
all modules, calls by its address. What Python passes is described by records (:mod:`records`).
"""

from __future__ import annotations

from loma.backends.scalar.build import build
from loma.backends.scalar.entries import generate
from loma.backends.scalar.load import load
from loma.backends.scalar.records import function_record, struct_records

__all__ = ["build", "function_record", "generate", "load", "struct_records"]
