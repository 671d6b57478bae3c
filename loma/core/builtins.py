"""The built-in scalar functions: their arguments, and the type of the result.

Their derivatives stand in :mod:`loma.ad.rules`, their lowering in each backend. On whole tensors
each of them is an operator, too (:mod:`loma.core.ops`), but for those that are ``scalar_only``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


Result: TypeAlias = Literal["int", "float", "operands"]


@dataclass(frozen=True, slots=True)
class BuiltinInfo:
    """``result`` is the type of the value; "operands" means int when all arguments are ints.

    ``ints`` names arguments that have to be an int, on tensors one for all elements. ``flat``: the
    derivative is zero wherever there is one. ``costly``: better read where its value is kept than
    computed again. ``reserved``: no function of a program has the name, as the text of derivatives
    calls it. ``exact``: for some operands the result is, and the last bit of others decides.
    ``even``: the value of -x is that of x. ``rounds``: it takes rounds of its own, of which there
    are none in vectors.
    """

    name: str
    args: tuple[str, ...]
    result: Result
    doc: str
    flat: bool = False
    costly: bool = False
    exact: bool = False
    reserved: bool = False
    scalar_only: bool = False
    even: bool = False
    rounds: bool = False
    ints: tuple[str, ...] = ()

    @property
    def arity(self) -> int:
        return len(self.args)


def _costly(
    name: str, doc: str, args: str = "x", *, reserved: bool = False, exact: bool = False,
    even: bool = False, rounds: bool = False,
) -> BuiltinInfo:  # fmt: skip
    return BuiltinInfo(
        name, tuple(args.split()), "float", doc, costly=True, exact=exact, reserved=reserved,
        even=even, rounds=rounds,
    )  # fmt: skip


def _cheap(name: str, result: Result, doc: str, args: str = "x") -> BuiltinInfo:
    return BuiltinInfo(name, tuple(args.split()), result, doc)


def _flat(name: str, result: Result, doc: str) -> BuiltinInfo:
    return BuiltinInfo(name, ("x",), result, doc, flat=True)


BUILTINS: dict[str, BuiltinInfo] = {
    info.name: info
    for info in (
        _costly("sin", "sine of an angle in radians", reserved=True),
        _costly("cos", "cosine of an angle in radians", reserved=True, even=True),
        _costly("tan", "tangent of an angle in radians"),
        _costly("asin", "angle from -pi/2 to pi/2 with that sine"),
        _costly("acos", "angle from 0 to pi with that cosine"),
        _costly("atan", "angle from -pi/2 to pi/2 with that tangent"),
        _costly("atan2", "angle of the point (x, y), from -pi to pi", "y x"),
        _costly("sinh", "hyperbolic sine"),
        _costly("cosh", "hyperbolic cosine", even=True),
        _costly("tanh", "hyperbolic tangent"),
        _costly("exp", "e to the power x", reserved=True),
        _costly("expm1", "exp(x) - 1, precise near 0"),
        _costly("exp2", "2 to the power x", exact=True),
        _costly("log", "natural logarithm", reserved=True),
        _costly("log1p", "log(1 + x), precise near 0"),
        _costly("log2", "logarithm to the base 2", exact=True),
        _costly("sqrt", "square root; its derivative at 0 is 0", reserved=True),
        _costly("rsqrt", "1 / sqrt(x)"),
        _costly("pow", "x to the power y", "x y", reserved=True, exact=True),
        _costly("erf", "error function"),
        _costly("erfc", "1 - erf(x), precise for large x"),
        _costly("lgamma", "logarithm of the absolute value of the gamma function", rounds=True),
        _costly("digamma", "derivative of lgamma", rounds=True),
        BuiltinInfo("polygamma", ("n", "x"), "float", "derivative of digamma, of order n <= 170",
                    costly=True, rounds=True, ints=("n",)),
        BuiltinInfo("abs", ("x",), "operands", "absolute value; its derivative at 0 is 0",
                    even=True),
        _flat("sign", "operands", "-1, 0 or 1; 0 for NaN; derivative 0"),
        _cheap("min", "operands", "the smaller; the first of equals; NaN if either is", "x y"),
        _cheap("max", "operands", "the larger; the first of equals; NaN if either is", "x y"),
        _cheap("clamp", "operands", "min(max(x, low), high)", "x min max"),
        _flat("floor", "float", "the largest whole number not above x; derivative 0"),
        _flat("ceil", "float", "the smallest whole number not below x; derivative 0"),
        _flat("round", "float", "the nearest whole number, of two the even one; derivative 0"),
        _flat("isnan", "int", "1 where x is NaN, else 0"),
        _flat("isfinite", "int", "0 where x is infinite or NaN, else 1"),
        _costly("sigmoid", "1 / (1 + exp(-x))"),
        _cheap("relu", "float", "max(x, 0); its derivative at 0 is 0"),
        _costly("softplus", "log(1 + exp(x))"),
        BuiltinInfo("int2float", ("x",), "float", "the int as a float", reserved=True,
                    scalar_only=True),
        BuiltinInfo("float2int", ("x",), "int", "truncation toward zero; no derivative",
                    flat=True, reserved=True, scalar_only=True),
        BuiltinInfo("mul_no_nan", ("x", "y"), "float",
                    "x * y, and 0 where y is 0, even if x is infinite or NaN", reserved=True),
        BuiltinInfo("len", ("start", "stop", "step"), "int",
                    "len(range(start, stop, step)): how many values a range has",
                    flat=True, costly=True, rounds=True, scalar_only=True,
                    ints=("start", "stop", "step")),
        BuiltinInfo("thread_id", (), "int", "the work item of a @simd function",
                    flat=True, reserved=True, scalar_only=True),
    )
}  # fmt: skip
