"""``loma bench``: what statements cost at least, counted by hand; timers; table and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from loma import compiler
from loma.backends.kernels.cost import Cost, cost_of, is_work
from loma.core.ir import Expr
from loma.core.printer import print_expr
from loma.frontend import parse
from loma.tools import bench
from loma.tools.cli import main

SQUASH = """
def squash(S : In[Tensor[B, N, D]]) -> Tensor[B, N, D]:
    Q : Tensor[B, N]
    V : Tensor[B, N, D]
    Q[b, n] += S[b, n, d] * S[b, n, d]
    V[b, n, d] = S[b, n, d] * (sqrt(Q[b, n]) / (1.0 + Q[b, n]))
    return V
"""

# ------------------------------------------------------------------------- costs, counted by hand


def cost(text: str, **options: Any) -> Cost | None:
    """The cost of all the statements of a program's last function as one unit."""
    module = parse(text)
    return cost_of(module.functions[-1].body, module, **options)


def numbers(text: str, **sizes: Any) -> tuple[int, int]:
    """(floats moved, operations) of the last function; options start with an underscore."""
    options = {name[1:]: sizes.pop(name) for name in list(sizes) if name[0] == "_"}
    found = cost(text, **options)
    assert found is not None
    return evaluated(found.moved.get("float"), sizes), evaluated(found.flops, sizes)


def evaluated(expr: Expr | None, sizes: dict[str, int]) -> int:
    """An int expression's text is Python."""
    return 0 if expr is None else int(eval(print_expr(expr), {"min": min, "max": max}, sizes))


def of_statement(text: str, params: str, result: str = "Tensor[N]") -> str:
    return f"def f({params}) -> {result}:\n    Z : {result}\n    {text}\n    return Z\n"


VECTORS = "X : In[Tensor[N]], Y : In[Tensor[N]]"
MATRICES = "X : In[Tensor[N, M]], W : In[Tensor[M, K]]"


@pytest.mark.parametrize(
    ("text", "moved", "flops"),
    [
        # what is read and written once
        (of_statement("Z[i] = X[i] * Y[i] + 1.0", VECTORS), 3 * 7, 2 * 7),
        # twice the same tensor
        (of_statement("Z[i] = X[i] * X[i]", VECTORS), 2 * 7, 7),
        # a target that is added to is read, too
        (of_statement("Z[i] += X[i]", VECTORS), 3 * 7, 7),
        # a matrix product: a multiplication and an addition for each point
        (of_statement("Z[i, k] += X[i, j] * W[j, k]", MATRICES, "Tensor[N, K]"),
         7 * 5 + 5 * 3 + 2 * 7 * 3, 2 * 7 * 5 * 3),
        # a part of the work that depends on fewer indices is done less often
        (of_statement("Z[i, k] = exp(X[i, 0]) * W[0, k]", MATRICES, "Tensor[N, K]"),
         7 + 3 + 7 * 3, 7 + 7 * 3),
        # a reduction on the right
        (of_statement("Z[i] = sum(X[i, j] * X[i, j] for j in M)", MATRICES),
         7 * 5 + 7, 2 * 7 * 5),
        # overlapping reads: no more than the tensor
        (of_statement("Z[i] = zero_pad(X[i - 1]) + zero_pad(X[i + 1])", VECTORS), 2 * 7, 7),
        # one element
        (of_statement("Z[i] = X[0]", VECTORS), 1 + 7, 0),
        # an extent that depends on an index: its middle
        (of_statement("Z[i] = sum(X[j] for j in i)", VECTORS), 2 * 7, 7 * 3),
        # comparisons are arithmetic, subscripts are not
        (of_statement("Z[i] = X[N - 1 - i] if X[i] > 0.0 else 0.0", VECTORS), 2 * 7, 7),
        # operators: arguments and result move
        (of_statement("Z = matmul(X, W)", MATRICES, "Tensor[N, K]"),
         7 * 5 + 5 * 3 + 7 * 3, 2 * 7 * 5 * 3),
        (of_statement("Z = relu(X + Y)", VECTORS), 5 * 7, 2 * 7),
        (of_statement("Z = softmax(X, 0)", VECTORS), 2 * 7, 5 * 7),
        # views move nothing
        (of_statement("Z = reshape(X, [M, N])", MATRICES, "Tensor[M, N]"), 0, 0),
    ],
)  # fmt: skip
def test_costs_of_statements(text: str, moved: int, flops: int) -> None:
    assert numbers(text, N=7, M=5, K=3) == (moved, flops)


def test_convolutions_count_a_product_and_a_sum_for_each_weight() -> None:
    text = (
        "def f(x : In[Tensor[B, C, H, W]], w : In[Tensor[F, C, P, Q]]) "
        "-> Tensor[B, F, H - P + 1, W - Q + 1]:\n    return conv2d(x, w)\n"
    )
    out = 2 * 4 * 5 * 6
    moved, flops = numbers(text, B=2, C=3, H=7, W=8, F=4, P=3, Q=3)
    assert flops == 2 * out * 3 * 9
    assert moved == 2 * 3 * 7 * 8 + 4 * 3 * 9 + out


def test_a_unit_of_statements_moves_each_tensor_once() -> None:
    b, n, d = 2, 3, 5
    sizes = {"B": b, "N": n, "D": d}
    moved, flops = numbers(SQUASH, **sizes)
    # S and V, and Q, which += reads and writes; what was written is not read again
    assert moved == 2 * b * n * d + 2 * b * n
    assert flops == 2 * b * n * d + 3 * b * n + b * n * d
    private, same = numbers(SQUASH, **sizes, _private=frozenset({"Q"}))
    assert private == 2 * b * n * d
    assert same == flops
    fresh, _ = numbers(SQUASH, **sizes, _fresh=True)
    assert fresh == 2 * b * n * d + b * n


def test_loops_and_branches_of_a_unit() -> None:
    text = """
def f(X : In[Tensor[N]], steps : In[int], kind : In[int]) -> Tensor[N]:
    Z : Tensor[N]
    for t in range(steps):
        if kind != 0:
            Z[i] = X[i] * X[i] + X[i]
        else:
            Z[i] = X[i] + 1.0
        if t > 0:
            Z[i] = sqrt(Z[i])
    return Z
"""
    for kind, each in ((1, 2), (0, 1)):
        moved, flops = numbers(text, N=7, steps=3, kind=kind)
        assert flops == 3 * 7 * (each + 1)
        assert moved == 2 * 7


def test_scalar_functions_and_ints_are_counted() -> None:
    text = """
def g(x : In[float]) -> float:
    return x * x + 1.0

def f(X : In[Tensor[N]], at : In[IntTensor[M]]) -> Tensor[M]:
    Z : Tensor[M]
    Z[j] = g(X[at[j]])
    return Z
"""
    found = cost(text)
    assert found is not None
    sizes = {"N": 100, "M": 4}
    assert evaluated(found.moved["float"], sizes) == 4 + 4
    assert evaluated(found.moved["int"], sizes) == 4
    assert evaluated(found.flops, sizes) == 2 * 4


def test_a_tensor_of_any_rank_has_no_known_cost() -> None:
    assert cost("def f(x : In[Tensor]) -> Tensor:\n    return x * x\n") is None


def test_what_is_work() -> None:
    module = parse(
        "def f(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:\n"
        "    m : int = n + 1\n    y = relu(x)\n    z = y\n    return z\n"
    )
    assert [is_work(stmt, module) for stmt in module.functions[0].body] == [
        False, True, False, False,
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- timers


@pytest.mark.cpu
def test_timers_count_runs_and_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_OPT", "-fusion,-costly")
    path = tmp_path / "squash.loma"
    path.write_text(SQUASH, encoding="utf-8")
    plain, timed = compiler.compile(path), compiler.compile(path, timed=True)
    s = torch.randn(4, 6, 8)
    assert torch.equal(plain.squash(s), timed.squash(s))
    native: Any = timed.__native__
    native.reset_probes()
    for _ in range(3):
        timed.squash(s.double())
    rows = {row[2]: row for row in native.probes() if row[0] == "squash" and row[3]}
    elements, capsules = 4 * 6 * 8, 4 * 6
    for text, row in rows.items():
        _, line, _, count, nanoseconds, _, moved, flops = row
        assert count == 3
        assert nanoseconds > 0
        if text.startswith("Q"):
            assert line == 5
            assert (moved, flops) == (3 * 8 * (elements + capsules), 3 * 2 * elements)
        else:
            assert line == 6
            assert moved == 3 * 8 * (2 * elements + capsules)
            assert flops == 3 * (3 * capsules + elements)
    assert len(rows) == 2
    assert native.probes()[0][3] == 3
    native.reset_probes()
    assert not any(row[3] for row in native.probes())
    assert compiler.compile(path).__native__.probes() == []  # type: ignore[union-attr]


@pytest.mark.full
@pytest.mark.cpu
def test_a_fused_loop_is_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOMA_OPT", raising=False)
    timed = compiler.compile(SQUASH, timed=True)
    native: Any = timed.__native__
    native.reset_probes()
    timed.squash(torch.randn(4, 6, 8))
    [row] = [row for row in native.probes() if row[3]]
    function, line, text, count, _, _, moved, flops = row
    assert (function, line, count) == ("squash", 5, 1)
    assert text.startswith("kernel over b\nQ[b, n] = ")
    assert moved == 4 * 2 * 4 * 6 * 8  # Q never reaches memory
    assert flops == 3 * 4 * 6 * 8 + 3 * 4 * 6


@pytest.mark.full
@pytest.mark.cpu
def test_times_are_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_OPT", "0")  # no inlining
    text = """
def inner(x : In[Tensor[N, N]]) -> Tensor[N, N]:
    return matmul(x, x)

def outer(x : In[Tensor[N, N]]) -> Tensor[N, N]:
    y = inner(x)
    return y
"""
    m = compiler.compile(text, timed=True)
    native: Any = m.__native__
    x = torch.randn(500, 500)

    def seconds() -> tuple[float, float]:
        native.reset_probes()
        with torch.no_grad():
            m.outer(x)
        rows = {row[0]: row for row in native.probes() if row[3]}
        assert rows["inner"][7] == 2 * 500**3
        assert rows["outer"][7] == 0
        return rows["outer"][4], rows["inner"][4]

    # A busy machine may take the processor away from the outer function, but not each time.
    assert any(outer < inner for outer, inner in (seconds() for _ in range(20)))


def test_what_bounds_a_unit() -> None:
    limits = bench.Limits(bytes_per_second=10.0, flops_per_second=100.0)

    def unit(bytes_: float | None, flops: float | None) -> bench.Unit:
        return bench.Unit("f", 1, "z = x", 1.0, 2.0, 0.0, bytes_, flops)

    assert unit(10.0, 0.0).fraction(limits) == ("memory", 0.5)
    assert unit(10.0, 150.0).fraction(limits) == ("arithmetic", 0.75)
    assert unit(0.0, 0.0).fraction(limits) is None
    assert unit(None, None).fraction(limits) is None


# ------------------------------------------------------------------------------------- the command


@pytest.fixture
def squash_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(bench, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(bench, "COPY_BYTES", 2**20)
    monkeypatch.setattr(bench, "PRODUCT_SIZE", 64)
    path = tmp_path / "squash.loma"
    path.write_text(SQUASH, encoding="utf-8")
    return str(path)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["bench", *args])
    return result.exit_code, result.output


def test_bench_prints_the_time_of_a_call(squash_file: str) -> None:
    code, output = run(squash_file, "squash", "--shapes", "S=4,6,8", "--threads", "1")
    assert code == 0
    assert output.startswith("squash, without gradients, float32, 1 thread: ")
    assert "page faults a call" in output


@pytest.mark.full
@pytest.mark.cpu
def test_explain_prints_a_row_for_each_statement(
    squash_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOMA_OPT", "-fusion")
    code, output = run("--explain", squash_file, "squash", "--size", "B=40", "--size", "N=60",
                       "--size", "D=8")  # fmt: skip
    assert code == 0, output
    assert "line 5: Q[b, n] = sum(S[b, n, d] * S[b, n, d] for d in D)" in output
    assert "line 6: V[b, n, d] = " in output
    assert "outside statements" in output
    assert "a large copy moves" in output


@pytest.mark.full
@pytest.mark.cpu
def test_explain_as_json_with_the_backward_part(squash_file: str) -> None:
    code, output = run("--explain", "--backward", "--json", "--dtype", "float64", squash_file,
                       "squash", "--shapes", "S=4,6,8")  # fmt: skip
    assert code == 0, output
    found = json.loads(output)
    assert found["ok"]
    assert found["backward"]
    assert found["dtype"] == "float64"
    assert found["limits"]["bytes_per_second"] > 0
    functions = {unit["function"] for unit in found["units"]}
    assert functions == {"squash__forward", "squash__backward"}
    times = [unit["seconds"] for unit in found["units"]]
    assert times == sorted(times, reverse=True)
    assert sum(times) + found["rest_seconds"] >= found["timed_seconds"] * 0.999
    assert all(unit["bytes"] > 0 and unit["bound"] for unit in found["units"])


def test_ints_are_given_and_half_precision_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "rounds.loma"
    path.write_text(
        "def rounds(x : In[Tensor[N]], iterations : In[int]) -> Tensor[N]:\n"
        "    y : Tensor[N] = x\n"
        "    for k in range(iterations):\n        y[i] = sin(y[i]) + x[i]\n    return y\n"
    )
    given = (str(path), "rounds", "--size", "N=8", "--dtype", "bfloat16")
    code, output = run(*given, "--int", "iterations=3")
    assert code == 0, output
    assert output.startswith("rounds, without gradients, bfloat16, ")
    code, output = run(*given, "--int", "iterations=3.5")
    assert code == 2
    assert "rounds: 'iterations' is an int, got 3.5" in output


def test_sizes_must_be_given(squash_file: str) -> None:
    code, output = run(squash_file, "squash", "--size", "B=4")
    assert code == 2
    assert "squash: give a value for the size N, D" in output


def test_a_function_without_gradients_has_no_backward_part(tmp_path: Path) -> None:
    path = tmp_path / "at.loma"
    path.write_text(
        "def at(x : In[Tensor[N]]) -> IntTensor[1]:\n"
        "    z : IntTensor[1]\n    z[i] = argmax(x[j] for j in N)\n    return z\n",
        encoding="utf-8",
    )
    code, output = run(str(path), "at", "--shapes", "x=5", "--backward")
    assert code == 1
    assert "no result has a gradient" in output
