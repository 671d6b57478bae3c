"""Runs the IR directly, slowly, in float64 on NumPy: what every other backend is tested against."""

from loma.backends.interpreter.interpreter import Interpreter

__all__ = ["Interpreter"]
