"""The canonical form: the same mathematics becomes the same statements, in inference, too."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.backends.lowering.index_statements import library_call
from loma.backends.schedule.host import Contract, Convolve
from loma.backends.schedule.target import CPU
from loma.core.ir import Declare, For, Function, IndexAssign, Op, Reduce
from loma.core.printer import print_function
from loma.core.walk import calls, nodes, statements
from loma.frontend import parse

HEAD = "x : In[Tensor[B, I]], w : In[Tensor[O, I]], c : In[Tensor[O]], z : In[Tensor[B]]"
IMAGES = "x : In[Tensor[B, C, H, W]], w : In[Tensor[O, C, 3, 3]], c : In[Tensor[O]]"


def canonical(text: str, name: str = "f") -> Function:
    return passes.canonical_form(parse(text)).function(name)


def layer(statement: str, helpers: str = "") -> Function:
    body = f"    y : Tensor[B, O]\n    {statement}\n    return y\n"
    return canonical(f"{helpers}\ndef f({HEAD}) -> Tensor[B, O]:\n{body}")


def shape_of(function: Function) -> list[str]:
    """The statements with numbers for names of variables and indices, declarations aside."""
    names: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        known = {param.name for param in function.params} | {"sum", "max", "for", "in", "exp"}
        return found[0] if found[0] in known else names.setdefault(found[0], f"v{len(names)}")

    text = print_function(function).split("\n")[1:]
    kept = [line for line in text if " : Tensor" not in line]
    return [re.sub(r"[A-Za-z_]\w*", number, line) for line in kept]


@pytest.mark.parametrize(
    "statement",
    [
        "y[b, o] = tanh(sum(x[b, i] * w[o, i] for i in I) + c[o])",
        "y[b, o] = max(c[o] + sum(w[o, i] * x[b, i] for i in I), 0.0)",
        "y[b, o] = sum(x[b, i] * w[o, i] / z[b] for i in I)",
        "y[b, o] = c[o] - sum(-x[b, i] * (2.0 * z[b]) * w[o, i] for i in I)",
        "y[b, o] += z[b] * x[b, i] * w[o, i]",
        "y[b, o] = sum(exp(x[b, i]) * w[o, i] for i in I) / sum(exp(x[b, i]) for i in I)",
    ],
)
def test_products_reach_the_library(statement: str) -> None:
    made = [s for s in statements(layer(statement).body) if isinstance(s, IndexAssign)]
    assert any(isinstance(library_call(s, CPU), Contract) for s in made)


def test_what_several_statements_share_lies_along_what_it_is_made_of() -> None:
    """The first of them has its loops in another order."""
    args = "q : In[Tensor[Q, D]], k : In[Tensor[K, D]], g : In[Tensor[Q, K]]"
    made = canonical(
        f"def f({args}) -> tuple[Tensor[D], Tensor[Q, K]]:\n"
        "    v : Tensor[D]\n    e : Tensor[Q, K]\n"
        "    v[d] = sum(g[i, j] * tanh(q[i, d] + k[j, d]) for i in Q for j in K)\n"
        "    e[i, j] = sum(tanh(q[i, d] + k[j, d]) for d in D)\n"
        "    return v, e\n"
    )
    (held,) = [
        s for s in made.body if isinstance(s, IndexAssign) and "tanh" in s.element.tensor.name
    ]
    assert [str(getattr(place, "name", "")) for place in held.element.subscripts] == ["i", "j", "d"]


def test_a_convolution_reaches_the_library() -> None:
    read = "zero_pad(x[b, k, h + p - 1, v + q - 1]) * w[o, k, p, q]"
    total = f"sum({read} for k in C for p in range(3) for q in range(3))"
    text = (
        f"def f({IMAGES}) -> Tensor[B, O, H, W]:\n    y : Tensor[B, O, H, W]\n"
        f"    y[b, o, h, v] = max(c[o] + {total}, 0.0)\n    return y\n"
    )
    made = [s for s in statements(canonical(text).body) if isinstance(s, IndexAssign)]
    assert any(isinstance(library_call(s, CPU), Convolve) for s in made)


def test_what_is_costly_is_computed_once() -> None:
    shown = print_function(
        layer("y[b, o] = sum(exp(x[b, i]) * w[o, i] for i in I) / sum(exp(x[b, k]) for k in I)")
    )
    assert shown.count("exp(") == 1
    # another value of x, and an operand that a condition guards
    guarded = layer("y[b, o] = sum(x[b, i] * (exp(c[o]) if o > 0 else 0.0) for i in I)")
    assert "_c[o] = exp(c[o]) if o > 0 else 0.0" in print_function(guarded)


@pytest.mark.parametrize(
    ("mask", "again", "many"),
    [
        ("j <= i", "l <= k", 1),
        ("j <= i", "k >= l and l > 0", 1),
        ("j <= i and j < n", "l <= k and l < n", 1),
        ("j <= i and j > 0", "l <= k", 2),  # less is held than is read
        ("j <= i", "l <= k + 1", 2),
        ("x[i, j] > 0.0", "x[k, l] > 0.0", 2),  # may be NaN
    ],
)
def test_what_is_held_under_a_condition_is_read_under_it(mask: str, again: str, many: int) -> None:
    text = f"""
def f(x : In[Tensor[N, N]], w : In[Tensor[N, N]], n : In[int]) -> tuple[Tensor[N, N], Tensor[N, N]]:
    y : Tensor[N, N]
    z : Tensor[N, N]
    y[i, j] = exp(x[i, j]) if {mask} else 0.0
    z[k, l] = w[k, l] * exp(x[k, l]) if {again} else w[l, k]
    return y, z
"""
    assert print_function(canonical(text)).count("exp(") == many


def test_what_is_held_in_any_case_is_read_under_a_condition() -> None:
    text = """
def f(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> tuple[Tensor[D], Tensor[N, D]]:
    y : Tensor[D]
    z : Tensor[N, D]
    y[d] += tanh(x[n, d])
    z[n, d] = tanh(x[n, d]) * g[d] + (1.0 - tanh(x[n, d]) if x[n, d] > 0.0 else 0.0)
    return y, z
"""
    assert print_function(canonical(text)).count("tanh(") == 1
    changed = text.replace("    z[n, d] =", "    x_1[n, d] = x_1[n, d] + 1.0\n    z[n, d] =")
    changed = changed.replace("tanh(x[n", "tanh(x_1[n").replace(
        "    y[d] +=", "    x_1 : Tensor[N, D]\n    x_1[n, d] = exp(x[n, d])\n    y[d] +="
    )
    assert print_function(canonical(changed)).count("tanh(") > 1


def test_what_was_held_is_not_read_after_a_change() -> None:
    text = """
def f(x : In[Tensor[N, N]]) -> tuple[Tensor[N, N], Tensor[N, N]]:
    y : Tensor[N, N]
    z : Tensor[N, N]
    y[i, j] = exp(x[i, j]) if j <= i else 0.0
    y[i, 0] = 1.0
    z[i, j] = 2.0 * exp(x[i, j]) if j <= i else 0.0
    return y, z
"""
    assert print_function(canonical(text)).count("exp(") == 2


def test_a_scalar_function_is_what_it_computes() -> None:
    head = "def bend(v : In[float], s : In[float]) -> float:\n"
    helpers = f"{head}    t : float = v + s\n    return tanh(t)\n"
    there = layer("y[b, o] = bend(sum(x[b, i] * w[o, i] for i in I), c[o])", helpers)
    here = layer("y[b, o] = tanh(sum(x[b, i] * w[o, i] for i in I) + c[o])")
    assert shape_of(there) == shape_of(here)


def test_operators_are_the_statements_that_they_stand_for() -> None:
    operators = canonical(
        "def f(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[N, D]:\n"
        "    return (x - mean(x, [1], keepdim=True)) * g\n"
    )
    assert not any(isinstance(node, Op) for node in nodes(operators.body))
    assert not any(isinstance(s, Declare) and s.value for s in operators.body)
    found = [s for s in operators.body if isinstance(s, IndexAssign)]
    assert [isinstance(s.value, Reduce) for s in found] == [True, False, False]


@pytest.mark.parametrize(
    "lines",
    [
        ["return mean(where(x > 0.0, x * x, 0.0))"],
        ["m : float = mean(where(x > 0.0, x * x, 0.0))", "return m"],
        ["m = sum(where(x > 0.0, x * x, 0.0)) / (N * M)", "return m"],
    ],
)
def test_a_number_made_of_a_tensor_is_a_sum(lines: list[str]) -> None:
    body = "".join(f"    {line}\n" for line in lines)
    function = canonical(f"def f(x : In[Tensor[N, M]]) -> float:\n{body}")
    assert not any(isinstance(node, Op) for node in nodes(function.body))
    assert "+= x[_k0, _k1] * x[_k0, _k1] if x[_k0, _k1] > 0.0 else 0.0" in print_function(function)


SHORT = "x : In[Tensor[N, 2 * M]], p : In[Tensor[N, M, 2, M, 3]], w : In[Tensor[3]]"

# value of y[n, m], whether it is written out
REDUCTIONS: tuple[tuple[str, bool], ...] = (
    ("sum(zero_pad(x[n, m + k - 1]) for k in range(3)) / 3.0", True),
    ("sum(x[n, m + k] for k in range(3)) / 3.0", True),  # no index of all of a row of x
    ("max(x[n, 2 * m + k] for k in range(2))", True),
    ("min(abs(x[n, 2 * m + k]) for k in range(2))", False),
    ("sum(p[n, 0, k, m, j] for k in range(2) for j in range(3))", True),
    ("sum(p[n, m, k, 0, j] for k in range(2) for j in range(3))", False),
    ("sum(zero_pad(x[n, m + k - 1]) * w[k] for k in range(3))", False),
    ("sum(zero_pad(x[n, m + k - 1]) for k in range(11))", False),
    ("sum(x[n, k] for k in range(2))", False),
)


@pytest.mark.parametrize(("value", "written_out"), REDUCTIONS)
def test_short_reductions_are_written_out(value: str, written_out: bool) -> None:
    body = f"    y : Tensor[N, M]\n    y[n, m] = {value}\n    return y\n"
    module = parse(f"def f({SHORT}) -> Tensor[N, M]:\n{body}")
    short = passes.canonical.short(module, extremes=True)
    left = [node for node in nodes(short.function("f").body) if isinstance(node, Reduce)]
    assert not left if written_out else left

    generator = np.random.default_rng(0)
    args = [generator.standard_normal(shape) for shape in ((2, 12), (2, 6, 2, 6, 3), (3,))]
    args[0][1, 3] = np.nan
    found, right = (Interpreter(m).call("f", *args)[0] for m in (short, module))
    np.testing.assert_allclose(found, right)


def test_maxima_are_written_out_behind_their_derivatives_only() -> None:
    module = parse(
        "def f(x : In[Tensor[2 * M]]) -> Tensor[M]:\n    y : Tensor[M]\n"
        "    y[m] = max(x[2 * m + k] for k in range(2))\n    return y\n"
    )
    reduced = [
        any(isinstance(node, Reduce) for node in nodes(form.function("f").body))
        for form in (passes.canonical_form(module), passes.canonical_form(module, every=True))
    ]
    assert reduced == [True, False]


def test_a_mean_of_sums_of_rows_is_one_sum() -> None:
    rows = "    each : Tensor[N]\n    each[n] = sum(x[n, m] ** 2 for m in M)\n"
    head = "def f(x : In[Tensor[N, M]]) -> "
    one = canonical(f"{head}float:\n{rows}    return mean(each)\n")
    assert "+= x[n, m] ** 2" in print_function(one)
    assert not any(isinstance(node, Reduce) for node in nodes(one.body))
    both = canonical(f"{head}tuple[float, Tensor[N]]:\n{rows}    return mean(each), each\n")
    assert any(isinstance(node, Reduce) for node in nodes(both.body))


def test_what_a_sum_reads_beside_its_statement_is_put_in_place() -> None:
    """The sum has a statement of its own before temporaries are looked at again."""
    made = canonical(
        "def f(x : In[Tensor[N, D]]) -> Tensor[N, D]:\n    y : Tensor[N, D]\n"
        "    c = x - mean(x, [1], keepdim=True)\n"
        "    y[n, d] = c[n, d] / sum(c[n, k] * c[n, k] for k in D)\n    return y\n"
    )
    assert "c" not in {s.element.tensor.name for s in made.body if isinstance(s, IndexAssign)}


def test_views_are_read_through() -> None:
    operators = canonical(
        "def f(x : In[Tensor[B, N, D]], y : In[Tensor[B, N]]) -> Tensor[B, D]:\n"
        "    return sum(transpose(x, 1, 2) * reshape(y, [B, 1, N]), [2])\n"
    )
    read = canonical(
        "def f(x : In[Tensor[B, N, D]], y : In[Tensor[B, N]]) -> Tensor[B, D]:\n"
        "    z : Tensor[B, D]\n    z[b, d] = sum(x[b, n, d] * y[b, n] for n in N)\n    return z\n"
    )
    assert shape_of(operators) == shape_of(read)


def test_products_of_batches() -> None:
    head = "def f(x : In[Tensor[B, N, D]], y : In[Tensor[B, D]]) -> Tensor[B, N]:\n"
    operators = canonical(f"{head}    return reshape(x @ reshape(y, [B, D, 1]), [B, N])\n")
    total = "z[b, n] = sum(x[b, n, d] * y[b, d] for d in D)"
    read = canonical(f"{head}    z : Tensor[B, N]\n    {total}\n    return z\n")
    assert shape_of(operators) == shape_of(read)
    loop = canonical(
        "def f(x : In[Tensor[B, N, D]], y : In[Tensor[B, D, N]]) -> Tensor[B, N, N]:\n"
        "    z : Tensor[B, N, N]\n    for b in range(B):\n        z[b] = x[b] @ y[b]\n"
        "    return z\n"
    )
    assert not any(isinstance(node, Op) for node in nodes(loop.body))


@pytest.mark.parametrize(
    ("call", "written_out"),
    [
        ("conv2d(x, reshape(w, [C, 1, 3, 3]), padding=[1, 1], groups=C)", True),
        ("conv2d(x, reshape(w, [C, 1, 3, 3]), groups=C, padding=[2, 2], dilation=[2, 2])", True),
        ("conv2d(relu(x), reshape(w, [C, 1, 3, 3]), c, padding=[1, 1], groups=C)", True),
        ("conv2d(x, expand(reshape(w, [C, 1, 3, 3]), [C, C, 3, 3]), padding=[1, 1])", False),
    ],
)
def test_a_filter_for_each_channel(call: str, written_out: bool) -> None:
    params = "x : In[Tensor[B, C, H, W]], w : In[Tensor[C, 3, 3]], c : In[Tensor[C]]"
    function = canonical(f"def f({params}) -> Tensor[B, C, H, W]:\n    return {call}\n")
    names = {node.name for node in nodes(function.body) if isinstance(node, Op)}
    assert ("conv2d" not in names) == written_out


def test_in_branches_and_loops() -> None:
    text = (
        "def f(x : In[Tensor[N, D]], n : In[int]) -> Tensor[N, D]:\n    y : Tensor[N, D] = x\n"
        "    for t in range(n):\n        if t > 0:\n            y = relu(y) * x\n    return y\n"
    )
    loop = canonical(text).body[1]
    assert not any(isinstance(node, Op) for node in nodes((loop,)))


def test_softmax_of_rows_in_a_loop() -> None:
    text = (
        "def f(x : In[Tensor[N, D]]) -> Tensor[N, D]:\n    y : Tensor[N, D]\n"
        "    for n in range(N):\n        y[n] = softmax(x[n], 0)\n    return y\n"
    )
    body = canonical(text).body  # in front of AD, where softmax of all rows stays one operator
    assert not any(isinstance(node, Op) for node in nodes(body))
    assert not any(isinstance(stmt, For) for stmt in statements(body))


MASKED = "def f(s : In[Tensor[B, N, N]], v : In[Tensor[B, N, D]]) -> Tensor[B, N, D]:\n"
SEEN = "where(tril(ones([N, N])) > 0.0, s, -1e9)"


@pytest.mark.parametrize(
    "lines",
    [
        [f"return {SEEN} @ v"],
        ["m = tril(ones([N, N])) > 0.0", "return where(m, s, -1e9) @ v"],
        ["m = triu(ones([N, N]), 1)", "return where(not m == 1.0, s, -1e9) @ v"],
        ["m : Tensor[N, N]", "m[i, j] = 1.0 if j <= i else 0.0", "t = where(m > 0.5, s, -1e9)",
         "return t @ v"],
    ],
)  # fmt: skip
def test_masks_are_conditions(lines: list[str]) -> None:
    """No spelling has a tensor for the mask, and all say the same."""
    module = parse(MASKED + "".join(f"    {line}\n" for line in lines))
    made = passes.dead_code(passes.canonical_form(module)).function("f")
    wanted = "_operand[_i0, _i1, _i2] = s[_i0, _i1, _i2] if _i2 <= _i1 else -1000000000.0"
    shown = re.sub(r"(_i\d)_\d", r"\1", print_function(made))
    shown = shown.replace("not _i2 >= _i1 + 1", "_i2 <= _i1").replace(" t[", " _operand[")
    assert wanted in shown
    assert "[N, N]\n" not in shown


def test_numbers_made_of_sizes_stand_where_they_are_used() -> None:
    head = "def f(x : In[Tensor[N, D]]) -> Tensor[N, D]:\n"
    whole = canonical(f"{head}    return x / sqrt(int2float(D))\n")
    own = "y : Tensor[N, D]\n    y[i, j] = x[i, j] / sqrt(int2float(D))"
    assert shape_of(whole) == shape_of(canonical(f"{head}    {own}\n    return y\n"))


def test_a_mask_that_changes_is_read() -> None:
    text = (
        "def f(x : In[Tensor[N, N]], n : In[int]) -> Tensor[N, N]:\n"
        "    m = tril(ones([N, N])) > 0.0\n    y = where(m, x, 0.0)\n"
        "    m = triu(ones([N, N])) > 0.0\n    return y + where(m, x, 1.0)\n"
    )
    assert "if m[" in print_function(canonical(text))


def test_products_with_what_a_round_makes() -> None:
    text = (
        "def f(x : In[Tensor[B, N, D]]) -> Tensor[B, N, D]:\n    y : Tensor[B, N, D]\n"
        "    w : Tensor[N, N]\n    for b in range(B):\n        w[i, j] = exp(x[b, i, 0] * j)\n"
        "        y[b] = w @ x[b] / sqrt(int2float(D))\n    return y\n"
    )
    body = canonical(text).body
    assert not any(isinstance(node, Op) for node in nodes(body))
    assert not any(isinstance(stmt, For) for stmt in statements(body))


@pytest.mark.parametrize(
    ("guard", "taken_out"),
    [
        ("z[b] > 0.0", True),
        ("z[b] > c[o]", False),
        ("b > 1", False),
        ("z[b] > 0.0 and x[b, o % I] > 0.0", False),
    ],
)
def test_a_guarded_sum_is_taken_out_of_conditions_on_rows(guard: str, taken_out: bool) -> None:
    statement = f"y[b, o] = sum(x[b, i] * w[o, i] for i in I) if {guard} else c[o]"
    shown = print_function(layer(statement))
    assert ("_r[b, o] = sum" in shown) == taken_out
    text = f"def f({HEAD}) -> Tensor[B, O]:\n    y : Tensor[B, O]\n    {statement}\n    return y\n"
    text = with_derivative(text)
    values = torch.Generator().manual_seed(3)
    for rows, size in ((3, 2), (2, 1), (0, 2)):
        shapes = ((rows, size), (4, size), (4,), (rows,))
        arguments = tuple(torch.randn(s, generator=values, dtype=torch.float64) for s in shapes)
        compare(Point("f", text, "f", arguments), Changed(text, verified(passes.optimise)))


HALVES = "x : In[Tensor[N, 2 * D]], n : In[int]"
GATED = "_result[_i0, _i1] = x[_i0, _i1 + 0] * exp(x[_i0, D + _i1])"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["return x[:, :D] * exp(x[:, D:])"], GATED),
        (["value, gate = split(x, [D, D], 1)", "return value * exp(gate)"], GATED),
        (["g = transpose(x[:, D:], 0, 1)", "return x[:, :D] * exp(transpose(g, 0, 1))"], GATED),
        (["y : Tensor[N, D]", "g = x[:, D:]", "y[i, j] = x[i, j + 0] * exp(g[i, j])", "return y"],
         "y[i, j] = x[i, j + 0] * exp(x[i, D + j])"),
        # it may lie outside, has steps, or is another value by then
        (["return x[:, n:n + D] * 2.0"], "slice"),
        (["return x[:, :D] + x[1:2, D:]"], "slice"),
        (["return x[:, ::2] * 2.0"], "slice"),
        (["z = x * 2.0", "g = z[:, D:]", "z[:, D:] = x[:, :D]", "return g * 2.0"], "slice"),
    ],
)  # fmt: skip
def test_slices_are_read_where_they_lie(lines: list[str], expected: str) -> None:
    body = "".join(f"    {line}\n" for line in lines)
    module = passes.dead_code(
        passes.canonical_form(parse(f"def f({HALVES}) -> Tensor[N, D]:\n{body}"))
    )
    shown = print_function(module.function("f"))
    assert expected in shown
    assert expected == "slice" or "slice" not in shown


def test_what_a_callee_returns_may_be_more_than_a_variable() -> None:
    callee = "def _largest(x : In[Tensor[N, D]]) -> Tensor[N]:\n    return amax(x, [1])\n"
    head = "def f(x : In[Tensor[N, D]]) -> Tensor[N]:\n"
    called = canonical(
        f"{callee}{head}    y : Tensor[N]\n    m = _largest(x)\n"
        "    y[n] = sum(exp(x[n, d] - m[n]) for d in D)\n    return y\n"
    )
    written = canonical(
        f"{head}    y : Tensor[N]\n    m = amax(x, [1])\n"
        "    y[n] = sum(exp(x[n, d] - m[n]) for d in D)\n    return y\n"
    )
    assert shape_of(called) == shape_of(written)
    looped = canonical(
        f"{callee}{head}    y : Tensor[N]\n    for t in range(3):\n        y = _largest(x)\n"
        "    return y\n"
    )
    assert not list(calls(looped.body))


@pytest.mark.parametrize(
    ("body", "has", "has_not"),
    [
        ("y = sum(abs(x[:, 1:] - x[:, :I - 1]), 1)", "abs(x[_i0, ", "slice"),
        ("u = reshape(x, [B, 1, I, 1])\n    z = avg_pool2d(u, [49, 1], stride=[1, 1])\n"
         "    y = sum(reshape(z, [B, I - 48]), 1)", "range(49)", "avg_pool2d"),
    ],
)  # fmt: skip
def test_parts_and_windows_are_read_where_they_lie(body: str, has: str, has_not: str) -> None:
    program = f"def f(x : In[Tensor[B, I]]) -> Tensor[B]:\n    {body}\n    return y\n"
    shown = print_function(passes.canonical_form(parse(program)).function("f"))
    assert has in shown
    assert has_not not in shown
