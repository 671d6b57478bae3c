"""Calls that nest deep, with structs, arrays and tapes of any size: results, and no crash.

Each program runs in a process with a stack of one MiB, which its worker threads have, too.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys

import pytest
from conftest import ROOT
from c_host import OPTIONS, STRICT, CProgram, compiled, differentiated
from scalar_oracle import FIRST, check_derivatives

from loma import errors
from loma.backends.c import Options, generate
from loma.backends.interpreter import Interpreter
from loma.pipeline import stage_text

STACK = 1024 * 1024


def run(script: str) -> str:
    """What a Python script prints, in a process of its own."""

    def small_stack() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        preexec_fn=small_stack,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def calls(text: str, script: str) -> str:
    """``script`` with the program as ``structs, lib`` and as ``m``."""
    return run(
        "import ctypes, numpy as np, loma\nfrom loma import compat\n"
        f"text = {text!r}\nstructs, lib = compat.compile(text)\nm = loma.compile(text)\n{script}"
    )


LARGE = """
class Large:
    n : int
    a : Array[float, {size}]

def f0(s : In[Large], x : In[float]) -> Large:
    s.a[s.n] += x
    return s

"""
CHAIN = """
def f{k}(s : In[Large], x : In[float]) -> Large:
    return f{j}(f0(s, x), x)
"""
TOTAL = """
def total(s : In[Large], x : In[float], m : In[int]) -> float:
    t : Large = f{last}(s, x)
    y : float
    i : int
    while (i < m, max_iter := 100):
        y += t.a[i] * t.a[i]
        i += 1
    return y

d_total = rev_diff(total)
df_total = fwd_diff(total)
"""


def chain(size: int, levels: int) -> str:
    text = LARGE.format(size=size)
    text += "".join(CHAIN.format(k=k, j=k - 1) for k in range(1, levels))
    return text + TOTAL.format(last=levels - 1)


@pytest.mark.full
def test_a_chain_of_calls_that_pass_large_structs() -> None:
    """Structs of four megabytes, which go and come back by value at each of forty levels."""
    script = """
Large = structs["Large"]
s = Large(n=2)
s.a[3] = 2.0
assert lib.total(s, 1.0, 5) == 40.0 ** 2 + 4.0
d_s, d_x, d_m = Large(), ctypes.c_float(), ctypes.c_int()
lib.d_total(s, d_s, 1.0, d_x, 5, d_m, 1.0)
assert (d_s.a[2], d_s.a[3], d_s.a[4], d_x.value) == (80.0, 4.0, 0.0, 3200.0)
dual = structs["_dfloat"]
moving = structs["_dLarge"](n=2)
moving.a[3] = dual(2.0, 1.0)
y = lib.df_total(moving, dual(1.0, 1.0), 5)
assert (y.val, y.dval) == (1604.0, 3204.0)
p = m.Large(n=2)
p.a[3] = 2.0
assert m.total(p, 1.0, 5) == 1604.0
d_p, d_x, _ = m.d_total(p, 1.0, 5, 1.0)
assert (d_p.a[2], d_p.a[3], d_x) == (80.0, 4.0, 3200.0)
print(s.a[2], "as it was")
"""
    assert calls(chain(1_000_000, 40), script) == "0.0 as it was\n"


@pytest.mark.full
def test_structs_that_no_function_may_return_by_value_alone() -> None:
    """Just below what one function may have, at many levels."""
    script = """
s = structs["Large"](n=2)
print(lib.f119(s, 1.0).a[2], m.f119(m.Large(n=2), 1.0).a[2])
"""
    assert calls(chain(60_000, 120), script) == "120.0 120.0\n"


@pytest.mark.full
def test_local_variables_of_nested_calls() -> None:
    """Sixty bytes short of what stands on the C stack, in each of 150 functions."""
    text = "def f0(x : In[float]) -> float:\n    return x\n"
    for k in range(1, 150):
        text += (
            f"def f{k}(x : In[float], i : In[int]) -> float:\n    a : Array[float, 16000]\n"
            f"    a[i] = x + 1.0\n    return f{k - 1}(a[i]{', i' if k > 1 else ''})\n"
        )
    text += "d = rev_diff(f149)\n"
    script = """
d_x, d_i = ctypes.c_float(), ctypes.c_int()
lib.d(1.0, d_x, 15999, d_i, 1.0)
print(lib.f149(1.0, 15999), m.f149(1.0, 15999), d_x.value)
"""
    assert calls(text, script) == "150.0 150.0 1.0\n"


@pytest.mark.full
def test_tapes_of_nested_calls() -> None:
    """Tapes of known capacity count as well: here forty in each function, at thirty levels."""
    text = "def f0(x : In[float]) -> float:\n    return x\n"
    for k in range(1, 30):
        variables = [f"y{j}" for j in range(40)]
        text += f"def f{k}(x : In[float]) -> float:\n"
        text += "".join(f"    {y} : float = x\n" for y in variables) + "    i : int\n"
        text += "    while (i < 3, max_iter := 2000):\n        i += 1\n"
        text += "".join(f"        {y} = sin({y})\n" for y in variables)
        text += f"    return f{k - 1}(({' + '.join(variables)}) / 40.0)\n"
    text += "d = rev_diff(f29)\n"
    script = """
d_x = ctypes.c_float()
lib.d(0.0, d_x, 1.0)
print(round(d_x.value, 3), [round(float(x), 3) for x in m.d(0.0, 1.0)])
"""
    assert calls(text, script) == "1.0 [1.0]\n"


@pytest.mark.full
def test_work_items_with_large_structs() -> None:
    """Threads have less of a stack than the process; items have variables of their own."""
    text = (
        chain(20_000, 20)
        + """
@simd
def each(s : In[Large], y : Out[Array[float]]):
    t : Large = f19(s, y[thread_id()])
    s.a[thread_id()] = 1.0
    y[thread_id()] = t.a[2] + s.a[thread_id()]
"""
    )
    script = """
s = structs["Large"](n=2)
y = (ctypes.c_float * 300)(*range(300))
lib.each(s, y, 300)
assert list(y) == [20.0 * k + 1.0 for k in range(300)]
z = np.arange(300, dtype=np.float32)
m.each(m.Large(n=2), z, 300)
assert z.tolist() == list(y)
print("ok")
"""
    assert calls(text, script) == "ok\n"


PASSED = """
class Large:
    a : Array[float, 100]
    n : int

class Pair:
    x : float
    k : int

class Both:
    l : Large
    p : Pair

def two(s : In[Large], p : In[Pair]) -> tuple[Large, int, Pair]:
    s.a[1] += 1.0
    return s, s.n // 2, p

def look(s : In[Large], i : In[int]) -> float:
    return s.a[i] * s.a[i]

def apart(s : In[Large], t : Out[Large], i : In[int], y : Out[float]):
    t.a[i] = 5.0
    y = s.a[i]

def both(b : In[Both]) -> Both:
    return b

def none(s : In[Large]):
    pass

def several(s : In[Large], p : In[Pair], i : In[int]) -> float:
    s, n, q = two(s, p)
    s, n, p = two(s, q)
    none(s)
    return look(s, i) + q.x + int2float(n) * p.x

def same(s : In[Large], i : In[int], j : In[int]) -> float:
    a : Array[Large, 3]
    a[0] = s
    a[1] = s
    y : float
    apart(a[i], a[j], 1, y)
    return y + a[j].a[1]

def inside(s : In[Large], x : In[float]) -> float:
    b : Both
    b.l = s
    b.p.x = x
    c : Both = both(both(b))
    return both(c).l.a[1] * both(b).p.x + look(both(b).l, 1) if s.n > 0 else both(b).p.x

def fails(s : In[Large], i : In[int]) -> Large:
    t, n, q = two(s, both(make(s)).p)
    t.a[i] = 1.0
    return t

def make(s : In[Large]) -> Both:
    b : Both
    b.l = s
    return b
"""


@pytest.fixture(scope="module", params=OPTIONS, ids=lambda o: f"{o.real}-{o.arrays}")
def passed(request: pytest.FixtureRequest) -> tuple[CProgram, Interpreter]:
    module = differentiated(PASSED)
    return CProgram(module, request.param), Interpreter(module)


def struct(n: int) -> dict[str, object]:
    return {"a": [0.5 * k for k in range(100)], "n": n}


CALLS: list[tuple[str, tuple[object, ...]]] = [
    ("several", (struct(7), {"x": 2.0, "k": 3}, 1)),
    ("same", (struct(1), 0, 1)),
    ("same", (struct(1), 1, 1)),
    ("inside", (struct(1), 3.0)),
    ("inside", (struct(0), 3.0)),
    ("fails", (struct(0), 3)),
]


@pytest.mark.parametrize(("name", "args"), CALLS)
def test_calls_by_pointer_mean_copies(
    passed: tuple[CProgram, Interpreter], name: str, args: tuple[object, ...]
) -> None:
    """Also where the storage that is passed changes during the call."""
    program, interpreter = passed
    assert program.call(name, *args) == tuple(interpreter.call(name, *args))
    with pytest.raises(IndexError, match="subscript 100 is outside"):
        program.call("fails", struct(0), 100)
    assert program.call(name, *args) == tuple(interpreter.call(name, *args))


def test_derivatives_of_calls_by_pointer() -> None:
    text = """
class Large:
    a : Array[float, 70]
    n : int

def g(s : In[Large], x : In[float]) -> Large:
    s.a[1] = sin(s.a[1] * x)
    s.a[2] *= s.a[1]
    return s

def f(s : In[Large], x : In[float], y : Out[Large]) -> float:
    t : Large = g(g(s, x), x)
    y = g(t, 2.0)
    return t.a[1] * t.a[2] + x
"""
    values = [0.1 * k for k in range(70)]
    check_derivatives(text, [{"a": values, "n": 3}, 0.7, {"a": [0.0] * 70, "n": 0}])
    made = differentiated(text + FIRST)
    c, interpreter = CProgram(made, Options("double")), Interpreter(made)
    one = {"a": [1.0] * 70, "n": 0}
    zero = {"a": [0.0] * 70, "n": 0}
    args = ({"a": values, "n": 3}, zero, 0.7, 0.0, one, 1.0)
    (d_s, d_x), (e_s, e_x) = c.call("rev_f", *args), interpreter.call("rev_f", *args)
    assert d_x == pytest.approx(e_x, rel=1e-12)
    assert d_s["a"] == pytest.approx(e_s["a"], rel=1e-12)


def test_large_structs_are_nowhere_on_the_stack_of_generated_c() -> None:
    """gcc says what each function takes of it; those that C calls with structs by value aside."""
    made = differentiated(chain(50_000, 6))
    text = generate(made, Options(entries=True)).text
    library = compiled(text, *STRICT, "-O1", "-fstack-usage", name="stack")
    (found,) = library.parent.glob("*.su")
    rows = [row.split("\t") for row in found.read_text().splitlines()]
    used = {row[0].rsplit(":", 1)[1]: int(row[1]) for row in rows}
    assert any(name.startswith("loma_entry_") for name in used)
    inside = {n: size for n, size in used.items() if n.endswith("_body") or n.startswith("loma_")}
    assert max(inside.values()) < 10_000


IN_TENSORS = """
class Large:
    k : int
    a : Array[float, 500000]

def h(s : In[Large], x : In[float]) -> Large:
    s.a[s.k] += x
    return s

def two(s : In[Large], x : In[float]) -> tuple[Large, float]:
    t : Large = h(s, x)
    return h(t, x), t.a[s.k]

def swap(s : In[Large], t : Out[Large], y : Out[float]):
    zero(t)
    y = s.a[s.k]

def g(x : In[float]) -> float:
    s : Array[Large, 2]
    s[1].k = float2int(x) + 1
    t : Large
    y : float
    z : float
    t, y = two(h(s[1], x), x)
    i : int
    while (i < 2, max_iter := 3):
        t = h(t, x * t.a[t.k])
        i += 1
    s[1] = t
    swap(s[i // 2], s[i - 1], z)
    tape : Stack[Large, 2]
    tape.push(t)
    s[0] = tape.pop()
    return s[0].a[t.k] + y + z + s[1].a[t.k]

def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = g(x[i])
    return y
"""


@pytest.mark.full
def test_scalar_functions_in_index_statements() -> None:
    """Large variables, arguments, results and stacks, with derivatives, on threads."""
    script = f"""
import loma, torch
m = loma.compile({IN_TENSORS!r})

def expected(x):
    t, y = 3 * x, 2 * x
    for _ in range(2):
        t = t + x * t
    return t + y + t

x = torch.rand(40, dtype=torch.float64, requires_grad=True)
torch.testing.assert_close(m.f(x), expected(x))
found = torch.autograd.grad(m.f(x).sum(), x, create_graph=True)[0]
wanted = torch.autograd.grad(expected(x).sum(), x, create_graph=True)[0]
torch.testing.assert_close(found, wanted)
torch.testing.assert_close(*(torch.autograd.grad(g.sum(), x)[0] for g in (found, wanted)))
print("ok")
"""
    assert run(script) == "ok\n"


def test_calls_that_nest_too_deep_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that small programs pass: functions of some numbers, one inside the other."""
    text = "def f0(x : In[float]) -> float:\n    return x\n"
    for k in range(1, 30):
        text += f"def f{k}(x : In[float]) -> float:\n    y : float = x\n    return f{k - 1}(y)\n"
    stage_text(text, "c")
    monkeypatch.setattr("loma.backends.cfamily.stack.MAX_CALL", 3000)
    with pytest.raises(
        errors.BackendLacksOperator, match=r"a call of 'f\d+' may take \d+ bytes of the stack"
    ) as caught:
        stage_text(text, "c")
    assert re.search(r"^<text>:\d+:", str(caught.value))


@pytest.mark.parametrize(
    "text",
    [
        "def f() -> int:\n    a : Array[Array[float, 2000000000], 2000000000]\n    return 1\n",
        "class H:\n    a : Array[Array[int, 2000000000], 2000000000]\n"
        "def f(h : In[Array[H]]) -> int:\n    return 1\n",
        "class A:\n    a : Array[float, 2000000000]\nclass B:\n    a : Array[A, 2000000000]\n"
        "def f(h : Out[B]):\n    pass\n",
    ],
)
def test_values_that_no_memory_holds_are_refused(text: str) -> None:
    with pytest.raises(errors.UnknownType, match="bytes"):
        stage_text(text, "parsed")
