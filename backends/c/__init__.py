"""The C backend: functions of the scalar layer become one self-contained C99 file."""

from loma.backends.c.codegen import function_text, generate
from loma.backends.c.options import Options

__all__ = ["Options", "function_text", "generate"]
