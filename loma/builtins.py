"""The built-in scalar functions: their arguments, and the type of the result.

Their derivatives stand in :mod:`loma.ad.rules`, their lowering in each backend. On whole tensors
each of them is an operator, too (:mod:`loma.ops`), but for those that are ``scalar_only``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BuiltinInfo:
    """``result`` is the type of the value; "operands" means int when all arguments are ints.

    ``ints`` names arguments that have to be an int, on tensors one for all elements. ``flat``: the
    derivative is zero wherever there is one.
    """

    name: str
    args: tuple[str, ...]
    result: Literal["int", "float", "operands"]
    doc: str
    flat: bool = False
    scalar_only: bool = False
    ints: tuple[str, ...] = ()

    @property
    def arity(self) -> int:
        return len(self.args)


def _real(name: str, doc: str, args: str = "x", flat: bool = False) -> BuiltinInfo:
    return BuiltinInfo(name, tuple(args.split()), "float", doc, flat)


def _operands(name: str, doc: str, args: str = "x", flat: bool = False) -> BuiltinInfo:
    return BuiltinInfo(name, tuple(args.split()), "operands", doc, flat)


BUILTINS: dict[str, BuiltinInfo] = {
    info.name: info
    for info in (
        _real("sin", "sine of an angle in radians"),
        _real("cos", "cosine of an angle in radians"),
        _real("tan", "tangent of an angle in radians"),
        _real("asin", "angle from -pi/2 to pi/2 with that sine"),
        _real("acos", "angle from 0 to pi with that cosine"),
        _real("atan", "angle from -pi/2 to pi/2 with that tangent"),
        _real("atan2", "angle of the point (x, y), from -pi to pi", "y x"),
        _real("sinh", "hyperbolic sine"),
        _real("cosh", "hyperbolic cosine"),
        _real("tanh", "hyperbolic tangent"),
        _real("exp", "e to the power x"),
        _real("expm1", "exp(x) - 1, precise near 0"),
        _real("exp2", "2 to the power x"),
        _real("log", "natural logarithm"),
        _real("log1p", "log(1 + x), precise near 0"),
        _real("log2", "logarithm to the base 2"),
        _real("sqrt", "square root; its derivative at 0 is 0"),
        _real("rsqrt", "1 / sqrt(x)"),
        _real("pow", "x to the power y", "x y"),
        _real("erf", "error function"),
        _real("erfc", "1 - erf(x), precise for large x"),
        _real("lgamma", "logarithm of the absolute value of the gamma function"),
        _real("digamma", "derivative of lgamma"),
        BuiltinInfo("polygamma", ("n", "x"), "float", "derivative of digamma, of order n <= 170",
                    ints=("n",)),
        _operands("abs", "absolute value; its derivative at 0 is 0"),
        _operands("sign", "-1, 0 or 1; 0 for NaN; derivative 0", flat=True),
        _operands("min", "the smaller; the first of equals; NaN if either is", "x y"),
        _operands("max", "the larger; the first of equals; NaN if either is", "x y"),
        _operands("clamp", "min(max(x, low), high)", "x min max"),
        _real("floor", "the largest whole number not above x; derivative 0", flat=True),
        _real("ceil", "the smallest whole number not below x; derivative 0", flat=True),
        _real("round", "the nearest whole number, of two the even one; derivative 0", flat=True),
        BuiltinInfo("isnan", ("x",), "int", "1 where x is NaN, else 0", flat=True),
        BuiltinInfo("isfinite", ("x",), "int", "0 where x is infinite or NaN, else 1", flat=True),
        _real("sigmoid", "1 / (1 + exp(-x))"),
        _real("relu", "max(x, 0); its derivative at 0 is 0"),
        _real("softplus", "log(1 + exp(x))"),
        BuiltinInfo("int2float", ("x",), "float", "the int as a float", scalar_only=True),
        BuiltinInfo("float2int", ("x",), "int", "truncation toward zero; no derivative",
                    scalar_only=True),
        _real("mul_no_nan", "x * y, and 0 where y is 0, even if x is infinite or NaN", "x y"),
        BuiltinInfo("len", ("start", "stop", "step"), "int",
                    "len(range(start, stop, step)): how many values a range has",
                    flat=True, scalar_only=True, ints=("start", "stop", "step")),
        BuiltinInfo("thread_id", (), "int", "the work item of a @simd function", scalar_only=True),
    )
}  # fmt: skip
