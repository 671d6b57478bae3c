"""Host scripts of the teaching compiler: what they import is here, and behaves as there."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from loma import compat, errors
from loma.backends.c import build

float3 = ctypes.c_float * 3

POLYNOMIAL = """
def f(x : In[float], y : In[float]) -> float:
    return x * x * y + 3.0 * y

d_f = rev_diff(f)
df = fwd_diff(f)
dd_f = fwd_diff(d_f)
"""


def test_a_function_and_its_derivatives() -> None:
    structs, lib = compat.compile(POLYNOMIAL)
    assert lib.f(2.0, 5.0) == 35.0
    dfloat = structs["_dfloat"]
    result = lib.df(dfloat(2.0, 1.0), dfloat(5.0, 0.0))
    assert (result.val, result.dval) == (35.0, 20.0)
    dx, dy = ctypes.c_float(0.5), ctypes.c_float(0.0)
    assert lib.d_f(2.0, ctypes.byref(dx), 5.0, ctypes.byref(dy), 1.0) is None
    # adjoints are added to
    assert (dx.value, dy.value) == (20.5, 7.0)
    ddx, ddy = dfloat(0.0, 0.0), dfloat(0.0, 0.0)
    lib.dd_f(dfloat(2.0, 1.0), ctypes.byref(ddx), dfloat(5.0, 0.0), ctypes.byref(ddy),
             dfloat(1.0, 0.0))  # fmt: skip
    assert (ddx.dval, ddy.dval) == (10.0, 4.0)


ABI = """
class Ray:
    origin : Array[float, 3]
    t : float
    hits : Array[Array[int, 2], 3]

class Pair:
    first : Ray
    n : int

def scalars(a : In[int], x : In[float], b : Out[int], y : Out[float]) -> int:
    b = a + b
    y = x + y
    return a / 2

def total(x : In[Array[float]], n : In[int]) -> float:
    s : float
    for i in range(n):
        s += x[i]
    return s

def fill(x : Out[Array[int, 3]]):
    for i in range(3):
        x[i] = i * i

def rows(x : In[Array[Array[float]]], y : Out[Array[Array[float]]], n : In[int], m : In[int]):
    for i in range(n):
        for j in range(m):
            y[j][i] = x[i][j]

def block(x : In[Array[Array[float, 3]]], n : In[int]) -> float:
    s : float
    for i in range(n):
        s += x[i][2]
    return s

def passed(ray : In[Ray], other : Out[Ray]) -> Ray:
    ray.t = 7.0
    other.origin[1] += ray.origin[0]
    other.hits[2][1] = 9
    return ray

def inside(pairs : In[Array[Pair]], out : Out[Array[Pair]], k : In[int]) -> Pair:
    p : Pair = pairs[k]
    p.n += 1
    out[k] = p
    return p

def several(x : In[float]) -> tuple[float, int]:
    return x * 2.0, x

@simd
def each(x : In[Array[float]], y : Out[Array[float]], sum : Out[float]):
    y[thread_id()] = 2.0 * x[thread_id()]
    atomic_add(sum, x[thread_id()])
"""


@pytest.fixture(scope="module")
def abi() -> tuple[dict[str, Any], Any]:
    return compat.compile(ABI)


def test_scalars_and_arrays(abi: tuple[dict[str, Any], Any]) -> None:
    _, lib = abi
    b, y = ctypes.c_int(4), ctypes.c_float(1.0)
    assert lib.scalars(7, 0.5, b, ctypes.byref(y)) == 3
    assert (b.value, y.value) == (11, 1.5)
    number, integer = ctypes.c_float, ctypes.c_int
    types: list[type] = [integer, number, ctypes.POINTER(integer), ctypes.POINTER(number)]
    assert all(itertools.starmap(issubclass, zip(lib.scalars.argtypes, types, strict=True)))
    assert lib.scalars.restype is ctypes.c_int
    assert lib.fill.restype is None
    values = (ctypes.c_float * 4)(1, 2, 3, 4)
    assert lib.total(values, 4) == 10.0
    ints = (ctypes.c_int * 3)()
    lib.fill(ints)
    assert list(ints) == [0, 1, 4]


def test_arrays_of_arrays(abi: tuple[dict[str, Any], Any]) -> None:
    """Pointers to pointers where the inner length is not known, else one block."""
    _, lib = abi
    pointer = ctypes.POINTER(ctypes.c_float)
    x = [float3(1, 2, 3), float3(4, 5, 6)]
    y = [(ctypes.c_float * 2)() for _ in range(3)]
    lib.rows((pointer * 2)(*(ctypes.cast(row, pointer) for row in x)),
             (pointer * 3)(*(ctypes.cast(row, pointer) for row in y)), 2, 3)  # fmt: skip
    assert [list(row) for row in y] == [[1, 4], [2, 5], [3, 6]]
    assert lib.block((float3 * 2)(*x), 2) == 9.0


def test_structs(abi: tuple[dict[str, Any], Any]) -> None:
    structs, lib = abi
    ray_type, pair_type = structs["Ray"], structs["Pair"]
    assert issubclass(ray_type, ctypes.Structure)
    assert ctypes.sizeof(pair_type) == 4 * (3 + 1 + 6 + 1)
    ray, other = ray_type(float3(1, 2, 3), 4.0), ray_type()
    result = lib.passed(ray, other)
    assert (result.t, ray.t, other.origin[1], other.hits[2][1]) == (7.0, 4.0, 1.0, 9)
    assert list(result.origin) == [1, 2, 3]
    pairs, out = (pair_type * 2)(), (pair_type * 2)()
    pairs[1].first.t, pairs[1].n = 2.5, 3
    found = lib.inside(pairs, out, 1)
    assert (found.n, out[1].n, out[1].first.t, pairs[1].n) == (4, 4, 2.5, 3)
    # differentials of structs are there for hosts
    assert [name for name, _ in structs["_dRay"]._fields_] == ["origin", "t", "hits"]
    assert structs["_dRay"]().t.dval == 0.0


def test_several_results_and_items(abi: tuple[dict[str, Any], Any]) -> None:
    _, lib = abi
    assert lib.several(1.5) == (3.0, 1)
    n = 1000
    x, y, total = (ctypes.c_float * n)(*([1.0] * n)), (ctypes.c_float * n)(), ctypes.c_float(2.0)
    lib.each(x, y, total, n)
    assert list(y) == [2.0] * n
    assert total.value == 2.0 + n
    lib.each(x, y, total, 0)
    assert total.value == 2.0 + n


# ----------------------------------------------------------------------------------------- failures

LOOPS = """
def count(n : In[int]) -> int:
    i : int
    while (i < n, max_iter := 10):
        i += 1
    return i

def slow(x : In[float], n : In[int]) -> float:
    i : int
    y : float = x
    while (i < n, max_iter := 10):
        y = y * x
        i += 1
    return y

def pick(i : In[int]) -> float:
    a : Array[float, 2]
    return a[i]

def divide(a : In[int], b : In[int]) -> int:
    return a // b

d_slow = rev_diff(slow)
df = fwd_diff(slow)
"""


def test_failures_are_python_errors() -> None:
    structs, lib = compat.compile(LOOPS)
    x = structs["_dfloat"](2.0, 1.0)
    dx, dn = ctypes.c_float(), ctypes.c_int()
    for _ in range(3):
        with pytest.raises(
            RuntimeError, match=r"^count: line 4: .* more than max_iter = 10 times$"
        ):
            lib.count(11)
        with pytest.raises(RuntimeError, match=r"^d_slow: line 11: the loop runs more than max_it"):
            lib.d_slow(2.0, dx, 11, dn, 1.0)
        with pytest.raises(
            RuntimeError, match=r"^df: line 11: the loop runs more than max_iter = 1"
        ):
            lib.df(x, 11)
        with pytest.raises(
            IndexError, match=r"^pick: line 18: subscript 2 is outside an array of 2"
        ):
            lib.pick(2)
        with pytest.raises(
            ZeroDivisionError, match=r"^divide: line 21: division of an int by zero$"
        ):
            lib.divide(3, 0)
        assert lib.count(10) == 10
        assert lib.pick(1) == 0.0
        assert lib.divide(-7, 2) == -4
        assert lib.df(x, 2).dval == 12.0
        dx.value = 0.0
        lib.d_slow(2.0, dx, 2, dn, 1.0)
        assert dx.value == 12.0


def test_each_thread_has_its_own_failures() -> None:
    _, lib = compat.compile(LOOPS)
    wrong: list[str] = []

    def work(fails: bool) -> None:
        for _ in range(2000):
            try:
                if lib.count(11 if fails else 7) != 7 or fails:
                    wrong.append("no error")
            except RuntimeError:
                if not fails:
                    wrong.append("an error of another thread")

    threads = [threading.Thread(target=work, args=(k % 2 == 0,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_wrong_calls_and_unknown_names() -> None:
    _, lib = compat.compile(LOOPS)
    with pytest.raises(ctypes.ArgumentError):
        lib.count("three")
    with pytest.raises(TypeError):
        lib.count()
    with pytest.raises(AttributeError, match="no function 'coumt': did you mean 'count'"):
        lib.coumt(3)
    assert "d_slow" in dir(lib)


# -------------------------------------------------------------------------------------------- names


def test_names_that_c_has_taken() -> None:
    _, lib = compat.compile(
        "def new(λ : In[float]) -> float:\n    return sinf(λ) + 1.0\n"
        "def sinf(class_ : In[float]) -> float:\n    return sin(class_)\n"
        "def __x(x : In[float]) -> float:\n    return new(x)\n"
    )
    assert lib.new(0.0) == 1.0
    assert lib.sinf(0.0) == 0.0
    assert getattr(lib, "__x")(0.0) == 1.0
    assert lib["new"](0.0) == 1.0


def test_functions_hide_what_ctypes_has() -> None:
    names = ["_name", "_handle", "_FuncPtr", "_state", "_func_flags_", "make", "__class__",
             "__dict__", "__getattr__", "__getattribute__", "__init__"]  # fmt: skip
    text = "def {}(x : In[float]) -> float:\n    return x + {}\n"
    _, lib = compat.compile("".join(text.format(name, k) for k, name in enumerate(names)))
    assert [getattr(lib, name)(1.0) for name in names] == [k + 1.0 for k in range(len(names))]
    assert lib["_handle"](0.0) == 1.0
    assert lib._name is lib._name
    assert "_FuncPtr" in repr(lib)
    assert set(names) <= set(dir(lib))


def test_null_is_no_array() -> None:
    _, lib = compat.compile(
        "def f(x : In[Array[float]], k : In[int]) -> float:\n    return x[0] * k\n"
        "d_f = rev_diff(f)\n"
    )
    pointer = ctypes.POINTER(ctypes.c_float)
    x = (ctypes.c_float * 2)(2.0, 3.0)
    for given in (x, ctypes.cast(x, pointer), ctypes.pointer(ctypes.c_float(2.0)),
                  ctypes.byref(ctypes.c_float(2.0))):  # fmt: skip
        assert lib.f(given, 3) == 6.0
    for null in (None, pointer()):
        with pytest.raises(ctypes.ArgumentError, match="'x' must not be NULL"):
            lib.f(null, 3)
    # the adjoint of an int is left alone
    d_x = (ctypes.c_float * 2)()
    lib.d_f(x, d_x, 3, None, 1.0)
    assert list(d_x) == [3.0, 0.0]


# -------------------------------------------------------------------------------------------- files


def constant(value: float) -> str:
    return f"def f() -> float:\n    return {value}\n"


def test_output_files(tmp_path: Path) -> None:
    """The library and its C file are where the script wants them; new code under an old name is
    new code, though the old library is still loaded."""
    libraries = []
    for value in (1.0, 2.0, 3.0):
        _, lib = compat.compile(constant(value), target="c", output_filename=tmp_path / "_code/f")
        libraries.append(lib)
        assert str(value) in (tmp_path / "_code/f.c").read_text()
    assert [lib.f() for lib in libraries] == [1.0, 2.0, 3.0]
    loaded = ctypes.CDLL(str(tmp_path / "_code/f.so"))
    loaded.f.restype = ctypes.c_float
    assert loaded.f() == 3.0
    assert sorted(os.listdir(tmp_path / "_code")) == ["f.c", "f.so"]
    compat.compile(constant(4.0), "c", str(tmp_path / "g.so"))
    compat.compile(constant(4.0), "c", str(tmp_path / "h.v2"))
    assert sorted(os.listdir(tmp_path)) == ["_code", "g.c", "g.so", "h.v2.c", "h.v2.so"]


def test_a_relative_output_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, lib = compat.compile(constant(5.0), output_filename="f")
    assert lib.f() == 5.0
    assert sorted(os.listdir()) == ["f.c", "f.so"]


def test_what_was_compiled_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path))
    text = constant(6.0)
    compat.compile(text)
    monkeypatch.setattr(build, "build", None)
    _, lib = compat.compile(text)
    assert lib.f() == 6.0


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("print_error", [True, False])
def test_mistakes(print_error: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.UndeclaredVariable) as caught:
        compat.compile("def f() -> float:\n    return y\n", print_error=print_error)
    assert caught.value.lineno == 2
    printed = capsys.readouterr().out
    assert printed == (f"{caught.value.to_string()}\n" if print_error else "")


def test_tensors_are_refused_with_their_line() -> None:
    text = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return relu(x)\n"
    with pytest.raises(errors.BackendLacksOperator, match=r"<text>:1:.*'f' works on them"):
        compat.compile(text, print_error=False)


def test_unknown_targets() -> None:
    for target in ("opencl", "C"):
        with pytest.raises(ValueError, match=f"no target '{target}': there is 'c', 'ispc'"):
            compat.compile(constant(1.0), target=target)


def test_the_target_ispc_is_c() -> None:
    _, lib = compat.compile(constant(1.5), target="ispc")
    assert lib.f() == 1.5


@pytest.mark.parametrize("code", [None, b"", 3])
def test_a_program_is_text(code: Any) -> None:
    with pytest.raises(TypeError, match=f"must be its text, a str, got {type(code).__name__}"):
        compat.compile(code)


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_characters_that_no_text_has(character: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.SyntaxNotSupported, match="cannot be part of") as caught:
        compat.compile(f"def f():\n    pass {character}\n")
    assert caught.value.lineno == 2
    assert capsys.readouterr().out.startswith("<text>:2:10: error: U+")


def test_large_structs_by_value() -> None:
    """Sixteen megabytes: ctypes alone would put them on the C stack."""
    structs, lib = compat.compile(
        "class Large:\n    a : Array[float, 4000000]\n\n"
        "def g(s : In[Large]) -> Large:\n    s.a[3999999] += 1.0\n    return s\n"
        "def f(s : In[Large]) -> Large:\n    return g(g(s))\n"
        "def h(s : Out[Large], x : In[float]):\n    zero(s)\n    s.a[7] = x\n"
        "d_h = rev_diff(h)\n"
    )
    large = structs["Large"]()
    assert lib.f(large).a[3999999] == 2.0
    large.a[7] = 3.0
    d_x = ctypes.c_float()
    lib.d_h(large, 1.0, d_x)
    assert d_x.value == 3.0


def test_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_CC", "no-such-compiler")
    with pytest.raises(errors.CompilerNotFound, match="no C compiler: looked for no-such-compiler"):
        compat.compile(constant(1.0))


def test_a_compiler_without_openmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """@simd functions then run their items one after the other."""
    compiler = tmp_path / "cc"
    compiler.write_text(
        "#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" = -fopenmp ] && exit 1; done\n"
        f"exec {' '.join(build.detect().command)} \"$@\"\n"
    )  # fmt: skip
    compiler.chmod(0o755)
    monkeypatch.setenv("LOMA_CC", str(compiler))
    assert build.openmp((str(compiler),)) == ()
    _, lib = compat.compile(ABI)
    x, y, total = (ctypes.c_float * 2)(1, 2), (ctypes.c_float * 2)(), ctypes.c_float()
    lib.each(x, y, total, 2)
    assert (list(y), total.value) == ([2.0, 4.0], 3.0)


def test_two_processes_compile_at_the_same_time(tmp_path: Path) -> None:
    code = (
        "from loma.compat import compile\n"
        f"_, lib = compile({constant(8.0)!r}, output_filename={str(tmp_path / 'f')!r})\n"
        "assert lib.f() == 8.0\n"
    )
    environment = os.environ | {"LOMA_CACHE_DIR": str(tmp_path / "cache")}
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
