"""The built-in scalar functions: how many arguments, and the type of the result.

Their derivatives stand in :mod:`loma.ad.rules`, their lowering in each backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BuiltinInfo:
    """``result`` is the type of the value; "operands" means int when all arguments are ints."""

    name: str
    arity: int
    result: Literal["int", "float", "operands"]
    doc: str


BUILTINS: dict[str, BuiltinInfo] = {
    info.name: info
    for info in (
        BuiltinInfo("sin", 1, "float", "sine of an angle in radians"),
        BuiltinInfo("cos", 1, "float", "cosine of an angle in radians"),
        BuiltinInfo("tan", 1, "float", "tangent of an angle in radians"),
        BuiltinInfo("exp", 1, "float", "e to the power x"),
        BuiltinInfo("log", 1, "float", "natural logarithm"),
        BuiltinInfo("sqrt", 1, "float", "square root; its derivative at 0 is 0"),
        BuiltinInfo("tanh", 1, "float", "hyperbolic tangent"),
        BuiltinInfo("pow", 2, "float", "x to the power y"),
        BuiltinInfo("abs", 1, "operands", "absolute value; its derivative at 0 is 0"),
        BuiltinInfo("min", 2, "operands", "the smaller; the first of equals; NaN if either is"),
        BuiltinInfo("max", 2, "operands", "the larger; the first of equals; NaN if either is"),
        BuiltinInfo("floor", 1, "float", "the largest whole number not above x; derivative 0"),
        BuiltinInfo("int2float", 1, "float", "the int as a float"),
        BuiltinInfo("float2int", 1, "int", "truncation toward zero; no derivative"),
        BuiltinInfo("mul_no_nan", 2, "float", "x * y, and 0 where y is 0, even if x is inf or NaN"),
        BuiltinInfo("len", 3, "int", "len(range(start, stop, step)): how many values a range has"),
        BuiltinInfo("thread_id", 0, "int", "the work item of a @simd function"),
    )
}
