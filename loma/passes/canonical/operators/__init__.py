"""Tensor operators as index statements, a file for each step."""

from loma.passes.canonical.operators.statements import operators as operators
