"""Reading programs: types of expressions and declarations, calls, operators, order, derivatives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from loma import errors
from loma.ad import differentiate
from loma.core.ir import (
    FLOAT, INT, Assign, CallStmt, Declare, Derivative, For, Index, Param, Return, TensorType,
    Unpack, Var, While,
)  # fmt: skip
from loma.core.printer import print_expr, print_stmt, print_type
from loma.core.verify import verify
from loma.core.walk import statements
from loma.frontend import parse
from loma.frontend.module import module_name
from loma.frontend.scope import Program
from loma.frontend.signatures import derivative_header

HEAD = (
    "def f(x : In[Tensor[B, C, H, W]], w : In[Tensor[O, C, P, Q]], b : In[Tensor[O]],\n"
    "      m : In[Tensor[N, M]], t : In[Tensor[10, 4]], k : In[IntTensor[N]],\n"
    "      g : In[IntTensor[N, M]], u : In[Tensor], n : In[int], a : In[float]):\n"
)


def _lines(*lines: str) -> list[str]:
    """The statements after parsing, as text."""
    body = "".join(f"    {line}\n" for line in lines)
    module = parse(HEAD + body)
    verify(module)
    return [print_stmt(stmt) for stmt in module.functions[0].body]


def _declared(line: str) -> str:
    (text,) = _lines(f"r = {line}")
    return text


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ("relu(m)", "r : Tensor[N, M] = relu(m)"),
        ("m * 2.0 + b * a if 0 else 0", None),
        ("-m / (m + 1)", "r : Tensor[N, M] = -m / (m + 1)"),
        ("m > 0.0", "r : BoolTensor[N, M] = m > 0.0"),
        ("where(m > 0.0, m, 0.0)", "r : Tensor[N, M] = where(m > 0.0, m, 0.0)"),
        ("exp(u)", "r : Tensor = exp(u)"),
        ("tanh(m)", "r : Tensor[N, M] = tanh(m)"),
        ("sum(m)", "r : Tensor[()] = sum(m)"),
        ("sum(m, 0)", "r : Tensor[M] = sum(m, [0])"),
        ("sum(m, [0, 1], keepdim=True)", "r : Tensor[1, 1] = sum(m, [0, 1], keepdim=True)"),
        ("sum(m, dim=-1)", "r : Tensor[N] = sum(m, [1])"),
        ("mean(m, [1], True)", "r : Tensor[N, 1] = mean(m, [1], keepdim=True)"),
        ("amax(m, [1])", "r : Tensor[N] = amax(m, [1])"),
        ("argmax(m, 1)", "r : IntTensor[N] = argmax(m, dim=1)"),
        ("softmax(m, 1)", "r : Tensor[N, M] = softmax(m, dim=1)"),
        ("log_softmax(m, dim=-1)", "r : Tensor[N, M] = log_softmax(m, dim=1)"),
        ("matmul(m, transpose(m, 0, 1))", "r : Tensor[N, N] = matmul(m, transpose(m, 0, 1))"),
        ("linear(t, zeros([n, 4]))", "r : Tensor[10, n] = linear(t, zeros([n, 4]))"),
        ("linear(t, ones([O, 4]), b)", "r : Tensor[10, O] = linear(t, ones([O, 4]), b)"),
        ("conv2d(x, w)", "r : Tensor[B, O, H - P + 1, W - Q + 1] = conv2d(x, w)"),
        ("conv2d(x, w, b, 2)",
         "r : Tensor[B, O, (H - P) // 2 + 1, (W - Q) // 2 + 1] = conv2d(x, w, b, stride=[2, 2])"),
        ("conv2d(x, w, padding=1)",
         "r : Tensor[B, O, H - P + 3, W - Q + 3] = conv2d(x, w, padding=[1, 1])"),
        ("max_pool2d(x, 2)", "r : Tensor[B, C, (H - 2) // 2 + 1, (W - 2) // 2 + 1] = "
         "max_pool2d(x, [2, 2])"),
        ("reshape(m, [M, N])", "r : Tensor[M, N] = reshape(m, [M, N])"),
        ("reshape(m, [N, -1])", "r : Tensor[N, M] = reshape(m, [N, -1])"),
        ("reshape(m, (N * M,))", "r : Tensor[M * N] = reshape(m, [N * M])"),
        ("permute(x, [0, 2, 3, 1])", "r : Tensor[B, H, W, C] = permute(x, [0, 2, 3, 1])"),
        ("cat([m, m], 1)", "r : Tensor[N, 2 * M] = cat([m, m], dim=1)"),
        ("cat([m, m])", "r : Tensor[2 * N, M] = cat([m, m])"),
        ("slice(t, 0, 1, n)", "r : Tensor[n - 1, 4] = slice(t, dim=0, start=1, end=n)"),
        ("slice(t, 0, 0, 10, step=3)",
         "r : Tensor[4, 4] = slice(t, dim=0, start=0, end=10, step=3)"),
        ("gather(m, 1, g)", "r : Tensor[N, M] = gather(m, g, dim=1)"),
        ("gather(m, g, dim=1)", "r : Tensor[N, M] = gather(m, g, dim=1)"),
        ("one_hot(k, 10)", "r : Tensor[N, 10] = one_hot(k, 10)"),
        ("expand(sum(m), [N])", "r : Tensor[N] = expand(sum(m), [N])"),
        ("no_diff(m) * a", "r : Tensor[N, M] = no_diff(m) * a"),
    ],
)  # fmt: skip
def test_operators_and_their_types(value: str, declared: str | None) -> None:
    if declared is None:
        with pytest.raises(errors.UserError):
            _declared(value)
    else:
        assert _declared(value) == declared


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["p, q = split(t, [3, 7], 0)"],
         ["p : Tensor[3, 4] = slice(t, dim=0, start=0, end=3)",
          "q : Tensor[7, 4] = slice(t, dim=0, start=3, end=10)"]),
        (["p, q, r = split(t, 4)"],
         ["p : Tensor[4, 4] = slice(t, dim=0, start=0, end=4)",
          "q : Tensor[4, 4] = slice(t, dim=0, start=4, end=8)",
          "r : Tensor[2, 4] = slice(t, dim=0, start=8, end=10)"]),
        # that n + 1 is M only a call can tell: the type says what has to come out
        (["p, q = split(m, [n, 1], dim=-1)"],
         ["p : Tensor[N, n] = slice(m, dim=1, start=0, end=n)",
          "q : Tensor[N, 1] = slice(m, dim=1, start=n, end=M)"]),
    ],
)  # fmt: skip
def test_split(lines: list[str], expected: list[str]) -> None:
    assert _lines(*lines) == expected


def test_scalars_convert_and_tensors_of_rank_0_are_read() -> None:
    assert _lines("s : float = n", "i : int = 2.5", "s = sum(m)", "i += a", "s /= n") == [
        "s : float = n",
        "i : int = 2.5",
        "s = sum(m)[()]",
        "i += a",
        "s = s / n",
    ]


def test_whole_tensors_are_assigned_and_augmented() -> None:
    assert _lines("y = relu(m)", "y = y * a", "y += m", "y -= 1.0", "y += sum(m, 1, True)") == [
        "y : Tensor[N, M] = relu(m)",
        "y = y * a",
        "y += m",
        "y = y - 1.0",
        "y = y + sum(m, [1], keepdim=True)",
    ]


def test_int_variables_that_are_assigned_once_are_sizes() -> None:
    assert _lines("half : int = M // 2", "rest : int = M - half", "y : Tensor[N, rest]") == [
        "half : int = M // 2",
        "rest : int = M - half",
        "y : Tensor[N, M - M // 2]",
    ]


def test_tensor_of_unknown_rank_is_assigned_before_use() -> None:
    assert _lines("y : Tensor", "if n:", "    y = relu(u)", "y += u")[0] == "y : Tensor"


def test_types_of_scalars() -> None:
    module = parse(
        "def f(x : In[float], n : In[int], I : In[IntTensor[N]], X : In[Tensor[N]]) -> float:\n"
        "    a : int = n / 2 + (x < 1.0)\n    b : float = n + x\n    c : int = max(n, 3) + I[0]\n"
        "    d : float = max(n, x) + X[0] + n ** 2 + n ** -1\n    return d\n"
    )
    a, b, c, d = (
        s.value for s in module.functions[0].body[:4] if isinstance(s, Declare) and s.value
    )
    assert [e.type for e in (a, b, c, d)] == [INT, FLOAT, INT, FLOAT]


def test_statements_of_the_scalar_layer() -> None:
    module = parse(
        "class P:\n    a : Array[float, 3]\n    n : int\n\n"
        "def f(p : In[P], out : Out[Array[Array[float]]]) -> float:\n"
        "    s : float\n    i : int\n    q : P\n    q = p\n"
        "    while (i < p.n and s < 9.0, max_iter := 50):\n        s += p.a[i] * q.a[i]\n"
        "        out[i][0] = s\n        q.a[i] *= 2.0\n        i += 1\n"
        "    for t in range(3):\n        s -= t\n    return s\n"
    )
    verify(module)
    loops = [s for s in module.functions[0].body if isinstance(s, While | For)]
    assert [type(loop) for loop in loops] == [While, For]
    assert isinstance(loops[0], While)
    assert loops[0].max_iter == 50
    assert print_stmt(loops[0].body[1]) == "out[i][0] = s"
    assert print_stmt(loops[0].body[2]) == "q.a[i] = q.a[i] * 2.0"


# ------------------------------------------------------------------------------------- functions

CALLS = """
def top(x : In[Tensor[N, 4]], k : In[int]) -> Tensor[N, 4]:
    half : int = k // 2
    y, mean = parts(x, half)
    s : float
    store(mean, s)
    z = relu(y)
    z[i, j] = square(x[i, j]) * s
    return z

def store(a : In[float], b : Out[float]):
    b = square(a)

def square(v : In[float]) -> float:
    return v * v

def parts(a : In[Tensor[R, C]], n : In[int]) -> tuple[Tensor[R + n - n, C], float]:
    m : float = sum(a) / (R * C)
    return a, m
"""


def test_functions_stand_in_call_order_and_results_have_the_callers_sizes() -> None:
    module = parse(CALLS)
    verify(module)
    assert [f.name for f in module.functions] == ["parts", "square", "store", "top"]
    top = module.function("top")
    unpack = next(s for s in top.body if isinstance(s, Unpack))
    assert [print_type(t.type) for t in unpack.targets] == ["Tensor[N, 4]", "float"]
    assert any(isinstance(s, CallStmt) for s in top.body)


def test_sizes_of_a_result_that_follow_an_int_argument() -> None:
    text = (
        "def make(k : In[int], x : In[Tensor[N]]) -> Tensor[N, 2 * k]:\n"
        "    return zeros([N, 2 * k])\n"
        "def f(x : In[Tensor[B]], n : In[int]) -> Tensor[B, 2 * n + 2]:\n"
        "    m : int = n + 1\n    y = make(m, x)\n    return y\n"
    )
    body = parse(text).function("f").body
    assert print_stmt(body[1]) == "y : Tensor[B, 2 * n + 2] = make(m, x)"


def test_own_functions_come_before_operators_of_the_same_name() -> None:
    text = (
        "def mean(a : In[float], b : In[float]) -> float:\n    return 0.5 * (a + b)\n"
        "def f(x : In[Tensor[N]]) -> float:\n    s : float = mean(x)\n    return mean(s, 1.0)\n"
    )
    assert print_stmt(parse(text).function("f").body[0]) == "s : float = mean(x)[()]"
    assert print_stmt(parse(text).function("f").body[1]) == "return mean(s, 1.0)"


def test_arguments_and_sizes() -> None:
    function = parse(
        "def f(w : In[Tensor[H, I * O]], x : In[Tensor[I, O]], D : In[int], y : In[Tensor[D, 3]],\n"
        "      z : Out[TorchTensorFloat], k : In[IntTensor[N]]):\n    pass\n"
    ).functions[0]
    types = [print_type(p.type) for p in function.params]
    assert types == ["Tensor[H, I * O]", "Tensor[I, O]", "int", "Tensor[D, 3]",
                     "TorchTensorFloat", "IntTensor[N]"]  # fmt: skip
    assert [p.mode for p in function.params] == ["In"] * 4 + ["Out", "In"]
    assert function.body == ()


def test_in_scalars_may_be_reassigned() -> None:
    body = (
        parse("def f(x : In[float]) -> float:\n    x = 2.0 * x\n    return x\n").functions[0].body
    )
    assert isinstance(body[0], Assign)


ALIASES = (
    "class P:\n    a : Array[float, 3]\n    t : float\n\n"
    "def g(a : In[float], b : Out[float]):\n    b = a\n\n"
    "def h(a : Out[float], b : Out[float]):\n    b = a\n\n"
    "def r(a : In[Array[float, 3]], b : Out[Array[float, 3]]):\n    b[0] = a[0]\n\n"
    "def f(x : Out[Array[float]], p : In[P], q : Out[Array[P]], i : In[int], j : In[int]):\n"
)


@pytest.mark.parametrize(
    "call",
    ["g(x[0], x[1])", "g(x[0] + 0.0, x[0])", "g(x[0], x[i])", "g(x[i], x[j])", "g(p.a[0], p.t)",
     "h(x[i], x[i + 1])", "h(p.a[0], p.t)", "h(p.a[0], p.a[2])", "r(p.a, q[0].a)",
     "r(q[i].a, q[i - 1].a)"],
)  # fmt: skip
def test_arguments_that_are_no_aliases(call: str) -> None:
    """An In number is a copy: it must only not be the very place that is written."""
    verify(parse(f"{ALIASES}    {call}\n"))


@pytest.mark.parametrize(
    "call",
    ["h(x[0], x[i])", "h(x[i], x[j])", "h(p.a[i], p.a[0])", "r(q[i].a, q[j].a)"],
)
def test_aliases_that_depend_on_subscripts_are_for_the_run(call: str) -> None:
    verify(parse(f"{ALIASES}    {call}\n"))


@pytest.mark.parametrize(
    "call",
    ["g(x[0], x[0])", "g(x[i], x[i])", "g(p.t, p.t)", "r(p.a, p.a)", "r(q[i].a, q[i].a)"],
)
def test_arguments_that_are_aliases(call: str) -> None:
    with pytest.raises(errors.AliasedOutArgument):
        parse(f"{ALIASES}    {call}\n")


def test_names_of_cpp_and_other_scripts_are_names() -> None:
    text = (
        "def template(new : In[float], π : In[float]) -> float:\n    int64_t : float = new * π\n"
        "    return int64_t\n"
    )
    assert [p.name for p in parse(text).functions[0].params] == ["new", "π"]


# --------------------------------------------------------------------------- modules, derivatives


def test_derivatives_follow_what_they_are_taken_of() -> None:
    text = (
        "dd = rev_diff(d)\nd = rev_diff(f)\ne = fwd_diff(f)\n"
        "def f(x : In[float]) -> float:\n    return x\n"
    )
    names = [(d.name, d.mode, d.of) for d in parse(text).derivatives]
    assert names == [("d", "rev_diff", "f"), ("dd", "rev_diff", "d"), ("e", "fwd_diff", "f")]
    assert parse(text).derivatives[0] == Derivative("d", "rev_diff", "f")


DERIVATIVE_CALL = """
def step(x : In[Tensor[N]], rate : In[float]) -> Tensor[N]:
    dx : Tensor[N]
    drate : float
    d_loss(x, dx, rate, drate, 1.0)
    return x - rate * dx

d_loss = rev_diff(loss)

def loss(x : In[Tensor[N]], scale : In[float]) -> float:
    s : float
    s += scale * x[i] * x[i]
    return s
"""


def test_a_derivative_can_be_called_by_the_convention_of_the_language() -> None:
    module = parse(DERIVATIVE_CALL)
    verify(module)
    assert [f.name for f in module.functions] == ["loss", "step"]
    with pytest.raises(errors.CallTypeMismatch, match="takes 5 arguments"):
        parse(DERIVATIVE_CALL.replace(", 1.0)", ")"))


def test_a_function_cannot_call_its_own_derivative() -> None:
    text = "def f(x : In[float], y : Out[float]):\n    d_f(x, y, 1.0)\n\nd_f = rev_diff(f)\n"
    with pytest.raises(errors.RecursionNotSupported, match="f -> d_f -> f"):
        parse(text)


def test_derivative_headers_follow_the_arguments() -> None:
    text = (
        "def g(x : In[float], n : In[int], X : In[Tensor[N]], Y : Out[Tensor[N]]):\n"
        "    Y[i] = X[i] * x\n\n"
        "def h(x : In[float], X : In[Tensor[N]]) -> tuple[float, Tensor[N]]:\n    return x, X\n\n"
        "d_g = rev_diff(g)\nd_h = rev_diff(h)\ndd_g = rev_diff(d_g)\n"
    )
    module = parse(text)
    program = Program(functions={f.name: f for f in module.functions})
    made = differentiate(module)
    for derivative in module.derivatives:
        header = derivative_header(derivative, program)
        program.functions[derivative.name] = header
        assert header.params == made.function(derivative.name).params


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("squash.loma", "squash"),
        ("/a/b/my-layer.v2.loma", "my_layer_v2"),
        ("3d.loma", "_3d"),
        ("class.loma", "_class"),
        ("<text>", "module"),
        ("", "module"),
    ],
)
def test_module_names(path: str, name: str) -> None:
    assert module_name(path) == name
    assert parse("", path).name == name


def test_what_means_nothing_is_skipped() -> None:
    text = (
        '"""A file."""\nfrom loma import In, Out\nimport loma\nimport loma.lang as l\n\n'
        'def f(x : In[float]) -> None:\n    """Nothing."""\n    "more"\n    pass\n'
    )
    function = parse(text).functions[0]
    assert (function.body, function.results, function.doc) == ((), (), "Nothing.")


def test_spans_point_at_the_text() -> None:
    module = parse("def f(x : In[float]) -> float:\n    return x + sin(x)\n")
    (last,) = module.functions[0].body
    assert isinstance(last, Return)
    assert (last.values[0].span.line, last.values[0].span.col, last.values[0].span.end_col) == (
        2,
        11,
        21,
    )
    for stmt in statements(module.functions[0].body):
        assert stmt.span.line == 2
    assert module.functions[0].params[0] == Param("x", FLOAT, "In")


def test_index_of_rank_0_result_in_a_declaration() -> None:
    body = parse("def f(X : In[Tensor[N]]) -> float:\n    return mean(X)\n").functions[0].body
    assert isinstance(body[0], Return)
    value = body[0].values[0]
    assert isinstance(value, Index)
    assert value.subscripts == ()
    assert print_expr(value) == "mean(X)[()]"
    assert isinstance(value.base.type, TensorType)
    assert Var("N", INT) != value  # type: ignore[comparison-overlap]


def test_threads_may_parse_at_once() -> None:
    """Without a lock CPython 3.11 fails here with a SystemError now and then."""
    lines = [f"    y[i] = y[i] * {k}.0 + (x[i] - {k}.0) * x[i]\n" for k in range(100)]
    text = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    y : Tensor[N]\n" + "".join(lines)
    text += "    return y\n"
    with ThreadPoolExecutor(max_workers=4) as pool:
        modules = list(pool.map(parse, [text] * 8))
    assert all(module == modules[0] for module in modules)
