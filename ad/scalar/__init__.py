"""Reverse mode on the scalar layer: functions that overwrite variables, arrays and structs."""

from loma.ad.scalar.context import Callee
from loma.ad.scalar.reverse import Reversal, as_callee, reverse_callee, reverse_derivative

__all__ = ["Callee", "Reversal", "as_callee", "reverse_callee", "reverse_derivative"]
