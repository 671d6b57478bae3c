"""Reverse mode on the scalar layer: functions that overwrite variables, arrays and structs."""

from loma.ad.scalar.context import Callee, Variant
from loma.ad.scalar.reverse import as_callee, reverse_callee, reverse_derivative

__all__ = ["Callee", "Variant", "as_callee", "reverse_callee", "reverse_derivative"]
