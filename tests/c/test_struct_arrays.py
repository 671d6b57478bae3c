"""Structs with arrays of unknown length in them: pointers in C, the caller's memory everywhere."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np
import pytest
from sampled import one_in
import torch
from c_host import OPTIONS, CProgram
from scalar_oracle import FIRST, Scalars, check_derivatives, random_floats

import loma
from loma import compat, errors
from loma.backends.c import Options
from loma.core.ir import ArrayType, FloatType, IntType, StructType, Type
from loma.core.printer import print_module
from loma.core.verify import verify
from loma.frontend import parse

Value = Any

POLY = """
class Poly:
    n : int
    c : Array[float]
    scale : float

"""
MESH = """
class Mesh:
    at : Array[int]
    w : Array[float]
    n : int

"""
# Texts of f, with arguments, and whether reverse derivatives of its derivatives exist.
CASES: dict[str, tuple[str, list[Value], bool]] = {
    "a struct by value": (
        POLY
        + """
def f(p : In[Poly], x : In[float]) -> float:
    y : float
    i : int = p.n - 1
    while (i >= 0, max_iter := 10):
        y = y * x + p.c[i]
        i -= 1
    return y * p.scale
""",
        [{"n": 3, "c": [0.5, -0.7, 0.3], "scale": 1.5}, 0.6],
        True,
    ),
    "arrays of structs with arrays": (
        MESH
        + """
def f(m : In[Array[Mesh]], k : In[int], x : In[Array[float]]) -> float:
    s : float
    for j in range(k):
        for i in range(m[j].n):
            s += m[j].w[i] * x[m[j].at[i]] * x[0]
    return s
""",
        [
            [
                {"at": [0, 2], "w": [0.3, 0.9], "n": 2},
                {"at": [2, 2, 1], "w": [0.1, 0.2, 0.4], "n": 3},
            ],
            2,
            [0.5, 0.7, -0.4],
        ],
        True,
    ),
    "structs inside, rows, and arrays of structs": (
        """
class V:
    x : Array[float, 2]
    k : int

class A:
    d : Array[float]
    v : Array[V]

class B:
    a : A
    g : Array[A, 2]
    m : Array[A]
    r : Array[Array[float]]
    q : Array[Array[float], 2]

def f(b : In[B], y : In[float]) -> float:
    v : V = b.a.v[1]
    v.x[0] = v.x[0] * b.a.d[v.k] * y
    z : float = v.x[0] * b.g[1].d[0] + b.m[1].v[0].x[1]
    return z * b.r[1][0] * b.q[1][2] + b.q[0][0]
""",
        [
            {
                "a": {"d": [0.3, 0.4], "v": [{"x": [0.1, 0.2], "k": 0}, {"x": [0.9, 0.8], "k": 1}]},
                "g": [{"d": [0.5], "v": []}, {"d": [0.6], "v": []}],
                "m": [{"d": [], "v": []}, {"d": [0.1], "v": [{"x": [0.7, 0.2], "k": 0}]}],
                "r": [[0.1, 0.2], [0.9]],
                "q": [[1.1], [0.1, 0.2, 0.3]],
            },
            0.8,
        ],
        True,
    ),
    "an Out struct": (
        POLY
        + """
def f(x : In[float], n : In[int], p : Out[Poly]):
    for i in range(n):
        p.c[i] = x * x * i
    p.scale = sin(x)
    p.n = n
""",
        [0.7, 3, {"n": 0, "c": [1.0, 2.0, 3.0, 4.0], "scale": 2.0}],
        False,
    ),
    "an Out array of structs": (
        POLY
        + """
def f(x : In[Array[float]], n : In[int], p : Out[Array[Poly]]):
    for i in range(n):
        for j in range(2):
            p[i].c[j] = x[i] * x[j]
        p[i].scale += x[i] * 2.0
""",
        [[0.7, 0.4], 2, [{"n": 2, "c": [1.0, 2.0], "scale": 2.0} for _ in range(2)]],
        False,
    ),
    "members of the argument that change": (
        POLY
        + """
def f(p : In[Poly], x : In[float]) -> float:
    y : float
    while (p.n > 0, max_iter := 10):
        p.n -= 1
        p.scale = p.scale * x
        y = y * p.scale + p.c[p.n]
    return y * p.scale
""",
        [{"n": 3, "c": [0.5, -0.7, 0.3], "scale": 1.5}, 0.6],
        True,
    ),
    "calls": (
        POLY
        + """
def dot(a : In[Array[float]], c : In[Array[float]], n : In[int]) -> float:
    s : float
    for i in range(n):
        s += a[i] * c[i]
    return s

def weighted(p : In[Poly], w : In[Array[float]]) -> float:
    return dot(p.c, w, p.n) * p.scale

def add(p : In[Poly], q : Out[Poly], x : In[float]):
    for i in range(p.n):
        q.c[i] += p.c[i] * x
    q.scale = p.scale * x

def f(p : In[Array[Poly]], w : In[Array[float]], x : In[float], q : Out[Poly]) -> float:
    add(p[1], q, x)
    add(p[0], q, x * x)
    return weighted(p[0], w) * x + weighted(p[1], w)
""",
        [
            [{"n": 2, "c": [0.5, -0.7], "scale": 1.5}, {"n": 1, "c": [0.3], "scale": 0.4}],
            [0.8, 0.9],
            0.6,
            {"n": 2, "c": [1.0, 2.0], "scale": 0.0},
        ],
        False,
    ),
    "an adjoint that is used up": (
        POLY
        + """
def f(x : In[float], i : In[int], j : In[int], p : Out[Poly]):
    p.c[i] = x
    p.c[j] = x * x
    p.scale = 2.0 * x
""",
        [0.6, 1, 1, {"n": 2, "c": [1.0, 2.0], "scale": 0.0}],
        False,
    ),
}


def checked(case: str) -> Scalars:
    text, _, _ = CASES[case]
    return Scalars(text + FIRST)


@pytest.mark.parametrize("case", CASES)
def test_derivatives(case: str) -> None:
    """First and second ones, in both modes, against differences and each other."""
    text, args, reverse_of = CASES[case]
    check_derivatives(text, args, reverse_of=reverse_of)


@pytest.mark.parametrize("case", CASES)
def test_text_is_a_program_again(case: str) -> None:
    module = checked(case).module
    verify(module)
    again = parse(print_module(module))
    verify(again)
    assert again.functions == module.functions


def arguments(known: Scalars, args: list[Value]) -> dict[str, list[Value]]:
    """Of f and of its derivatives."""
    left = iter(random_floats(known.inputs("f", args).size, 3).tolist())
    pairs = zip(args, known.params("f"), strict=True)
    weights = random_floats(known.run("f", args).size, 4)
    return {
        "f": args,
        "fwd_f": [known.dual(arg, param.type, left) for arg, param in pairs],
        "rev_f": known.adjoint_arguments("f", args, weights, start=0.5),
    }


@pytest.mark.parametrize("options", one_in(3, OPTIONS, 1), ids=lambda o: f"{o.real}-{o.arrays}")
def test_compiled_c(options: Options) -> None:
    for case, (_, args, _) in CASES.items():
        known = checked(case)
        program = CProgram(known.module, options, ("-O0",))
        tolerance = 1e-12 if options.real == "double" else 1e-5
        for name, values in arguments(known, args).items():
            types_ = known.outputs(name)
            np.testing.assert_allclose(
                known.flat(program.call(name, *values), types_),
                known.run(name, values),
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{case}: {name}",
            )


# -------------------------------------------------------------------------- calls from Python


def given(known: Scalars, value: Value, type_: Type, lists: bool) -> Value:
    """A value as a Python caller holds it."""
    match type_:
        case StructType(name):
            members = known.structs[name].members
            return types.SimpleNamespace(
                **{m: given(known, value[m], t, lists) for m, t in members}
            )
        case ArrayType(element) if isinstance(element, StructType | ArrayType) or lists:
            return [given(known, item, element, lists) for item in value]
        case ArrayType(element):
            return np.array(value, np.int32 if isinstance(element, IntType) else np.float32)
        case _:
            return value


def written(value: Value, type_: Type) -> Value:
    """An Out argument: a number is an array of one element."""
    if isinstance(type_, FloatType | IntType):
        return np.array([value], np.int32 if isinstance(type_, IntType) else np.float32)
    return value


def taken(known: Scalars, value: Value, type_: Type) -> Value:
    """What a call gave or wrote, as the interpreter has it."""
    match type_:
        case StructType(name):
            return {m: taken(known, getattr(value, m), t) for m, t in known.structs[name].members}
        case ArrayType(element):
            return [taken(known, item, element) for item in value]
        case _:
            return np.asarray(value).item()


@pytest.mark.parametrize("lists", one_in(2, [True, False]), ids=["lists", "arrays"])
def test_python_calls(lists: bool) -> None:
    """Lengths are those of what is passed; adjoints have the same."""
    for case, (_, args, _) in CASES.items():
        known = checked(case)
        module = loma.compile(print_module(known.module))
        for name, values in arguments(known, args).items():
            if name == "rev_f":
                values = known.adjoint_arguments(
                    "f", args, random_floats(known.run("f", args).size, 4)
                )
            function = known.function(name)
            passed, outs = [], []
            for value, param in zip(values, function.params, strict=True):
                arg = given(known, value, param.type, lists)
                if param.mode == "Out":
                    arg = written(arg, param.type)
                    outs.append((arg, param.type))
                passed.append(arg)
            found = getattr(module, name)(*passed)
            results = [found] if len(function.results) == 1 else []
            left = [*results, *(arg for arg, _ in outs)]
            types_ = [*function.results, *(type_ for _, type_ in outs)]
            read = [taken(known, value, type_) for value, type_ in zip(left, types_, strict=True)]
            np.testing.assert_allclose(
                known.flat(read, types_), known.run(name, values), rtol=1e-5, atol=1e-5,
                err_msg=f"{case}: {name}",
            )  # fmt: skip


def test_subscripts_are_checked() -> None:
    module = loma.compile(
        POLY
        + "\ndef f(p : In[Poly], i : In[int]) -> float:\n    return p.c[i]\n\nd = rev_diff(f)\n"
    )
    poly = module.Poly(c=np.array([1.0, 2.0], np.float32))
    assert module.f(poly, 1) == 2.0
    for i in (-1, 2):
        with pytest.raises(IndexError, match=f"f: line 9: subscript {i} is outside an array of 2"):
            module.f(poly, i)
    with pytest.raises(IndexError, match="outside an array of 0 elements"):
        module.f(module.Poly(), 0)
    with pytest.raises(TypeError, match=r"'p\.c' must be float32, got an array of float64"):
        module.f(module.Poly(c=np.ones(2)), 0)
    with pytest.raises(TypeError, match="arrays of any size"):
        _ = module.Poly.dtype


def test_compat() -> None:
    """Pointers as members, in arrays of structs, as the teaching compiler has them."""
    structs, library = compat.compile(
        CASES["arrays of structs with arrays"][0] + "\nd_f = rev_diff(f)\n", print_error=False
    )
    mesh, number, integer = structs["Mesh"], ctypes.c_float, ctypes.c_int
    at = [(integer * 2)(0, 2), (integer * 3)(2, 2, 1)]
    w = [(number * 2)(0.3, 0.9), (number * 3)(0.1, 0.2, 0.4)]
    x = (number * 3)(0.5, 0.7, -0.4)
    meshes = (mesh * 2)(*(mesh(at=at[k], w=w[k], n=k + 2) for k in range(2)))
    d_at, d_w = [(integer * 3)() for _ in at], [(number * 3)() for _ in w]
    d_meshes = (mesh * 2)(*(mesh(at=d_at[k], w=d_w[k]) for k in range(2)))
    d_x, d_k = (number * 3)(), integer()

    wanted = torch.tensor(list(x), requires_grad=True)
    weights = [torch.tensor(list(row), requires_grad=True) for row in w]
    total = sum(weights[k] @ wanted[list(at[k])] for k in range(2)) * wanted[0]
    assert isinstance(total, torch.Tensor)
    total.backward()
    assert library.f(meshes, 2, x) == pytest.approx(total.item())
    library.d_f(meshes, d_meshes, 2, ctypes.byref(d_k), x, d_x, 1.0)
    assert wanted.grad is not None
    np.testing.assert_allclose(list(d_x), wanted.grad, rtol=1e-5)
    for k, row in enumerate(weights):
        assert row.grad is not None
        np.testing.assert_allclose(list(d_w[k])[: k + 2], row.grad, rtol=1e-5)


@pytest.mark.parametrize(
    ("head", "body", "error", "says"),
    [
        ("p : In[Poly]", "q : Poly", errors.DeclareUnboundedArray, "'q' would have an array"),
        ("p : In[Poly]", "q : Array[Poly, 2]", errors.DeclareUnboundedArray, "'q' would have"),
        ("p : In[Poly]", "q : Stack[Poly]", errors.DeclareUnboundedArray, "on a stack"),
        ("p : In[Poly], q : Out[Poly]", "q = p", errors.AssignTypeMismatch, "at once"),
        ("p : In[Poly], q : Out[Poly]", "q.c = p.c", errors.AssignTypeMismatch, "no known length"),
        ("p : Out[Poly]", "zero(p)", errors.AssignTypeMismatch, "at once"),
        ("p : In[Poly]", "p.c[0] = 1.0", errors.WriteToInArgument, "whose arrays are read only"),
        ("p : Out[Poly]", "copy(p, p)", errors.AliasedOutArgument, "same storage"),
    ],
)
def test_errors(head: str, body: str, error: type[errors.UserError], says: str) -> None:
    text = f"{POLY}\ndef copy(p : In[Poly], q : Out[Poly]):\n    q.n = p.n\n\n"
    with pytest.raises(error, match=says) as caught:
        parse(f"{text}def f({head}):\n    {body}\n")
    assert caught.value.lineno == 12


def test_is_not_returned() -> None:
    with pytest.raises(errors.ReturnTypeMismatch, match="cannot be returned"):
        parse(f"{POLY}\ndef f(p : In[Poly]) -> Poly:\n    return p\n")
