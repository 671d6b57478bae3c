"""What rounds add up, take of arguments and store: its text, and values and derivatives."""

from __future__ import annotations

import pytest
from sampled import diagonals
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical
from loma.passes.additions import totals

HEAD = "x : In[Tensor[T, B, N]], w : In[Tensor[N, N]], u : In[Tensor[N, N]], b : In[Tensor[N]]"
HELPERS = """
def cell(x : In[Tensor[B, N]], h : In[Tensor[B, N]], w : In[Tensor[N, N]],
         u : In[Tensor[N, N]], b : In[Tensor[N]]) -> Tensor[B, N]:
    return tanh(x @ w + h @ u + b)


"""
# One recurrence; of each the canonical form has one product in front of the loop, and the state's
# tanh where the result has it.
CELLS = {
    "operators": """
h = zeros([B, N])
for t in range(T):
    h = tanh(x[t] @ w + h @ u + b)
    y[t] = h
""",
    "helpers": """
h : Tensor[B, N]
for t in range(T):
    h = cell(x[t], h, w, u, b)
    y[t, i, n] = h[i, n]
""",
    "added up": """
h : Tensor[B, N]
for t in range(T):
    s : Tensor[B, N]
    s[i, n] = b[n]
    s[i, n] += x[t, i, k] * w[k, n]
    s[i, n] += h[i, m] * u[m, n]
    h[i, n] = tanh(s[i, n])
    y[t, i, n] = h[i, n]
""",
    "added up from nothing": """
h : Tensor[B, N]
s : Tensor[B, N]
for t in range(T):
    s = zeros([B, N])
    s[j, n] += x[t, j, k] * w[k, n]
    s[i, m] += b[m]
    s[i, n] += h[i, m] * u[m, n]
    h[i, n] = tanh(s[i, n])
    y[t, i, n] = h[i, n]
""",
    "each": """
for i in range(B):
    h : Tensor[N]
    for t in range(T):
        h[n] = tanh(b[n] + sum(x[t, i, k] * w[k, n] for k in N) + sum(h[m] * u[m, n] for m in N))
        y[t, i, n] = h[n]
""",
}
# Where something else happens between.
OTHERS = {
    "another value": """
h : Tensor[B, N]
for t in range(T):
    h[i, n] = tanh(x[t, i, n] + h[i, n] * b[n])
    h[i, n] *= 2.0
    y[t, i, n] = h[i, n]
""",
    "one row": """
h : Tensor[B, N]
for t in range(T):
    h[i, n] = tanh(x[t, i, n] + h[i, n] * b[n])
    y[T - 1, i, n] = h[i, n]
""",
    "some rows": """
h : Tensor[B, N]
for t in range(T):
    h[i, n] = tanh(x[t, i, n] + h[i, n] * b[n])
    y[t // 2, i, n] = h[i, n]
""",
    "rows read between": """
h : Tensor[B, N]
for t in range(T):
    h[i, n] = tanh(x[t, i, n] + h[i, n] * b[n])
    b2 = sum(y)
    y[t, i, n] = h[i, n] + 0.0 * b2
""",
    "read between": """
h : Tensor[B, N]
s : Tensor[B, N]
for t in range(T):
    s[i, n] = x[t, i, n]
    h[i, n] = s[i, n] * b[n]
    s[i, n] += h[i, m] * u[m, n]
    y[t, i, n] = s[i, n]
""",
    "changed between": """
h : Tensor[B, N]
s : Tensor[B, N]
for t in range(T):
    s[i, n] = h[i, n]
    h[i, n] = x[t, i, n] * b[n]
    s[i, n] += x[t, i, m] * u[m, n]
    y[t, i, n] = s[i, n]
""",
    "itself": """
s : Tensor[B, N]
for t in range(T):
    s[i, n] = x[t, i, n]
    s[i, n] += s[i, n] * b[n]
    y[t, i, n] = s[i, n]
""",
    "a part of it": """
s : Tensor[B, N]
for t in range(T):
    s[i, n] = x[t, i, n]
    s[i, 0] += x[t, i, m] * b[m]
    y[t, i, n] = s[i, n]
""",
    "turned": """
h : Tensor[N, B]
for t in range(T):
    h[n, i] = tanh(x[t, i, n] + h[n, i] * b[n])
    y[t, i, n] = h[n, i]
""",
}


def program(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    result = "Tensor[T, B, N]"
    return f"{HELPERS}def f({HEAD}) -> {result}:\n    y : {result}\n{lines}    return y\n"


def canonical_lines(body: str) -> list[str]:
    printed = print_function(passes.canonical_form(parse(program(body))).function("f"))
    return [line for line in printed.split("\n") if " : " not in line]


@pytest.mark.parametrize("name", CELLS)
def test_one_form_of_a_cell(name: str) -> None:
    lines = canonical_lines(CELLS[name])
    loop = next(k for k, line in enumerate(lines) if "for t in" in line and "range(T):" in line)
    before, inside = "\n".join(lines[:loop]), lines[loop + 1 :]
    assert "* w[" in before
    assert not any("w[" in line or "x[" in line for line in inside if "slice(x" not in line)
    (tanh,) = [line for line in inside if "tanh(" in line]
    assert tanh.strip().startswith("y[t, ")


@pytest.mark.parametrize("name", ["another value", "one row", "some rows", "rows read between"])
def test_a_state_that_is_no_row_stays_one(name: str) -> None:
    assert not any(line.strip().startswith("y[t, ") and "tanh(" in line
                   for line in canonical_lines(OTHERS[name]))  # fmt: skip


@pytest.mark.parametrize("name", ["read between", "changed between", "itself", "a part of it"])
def test_additions_apart(name: str) -> None:
    module = parse(program(OTHERS[name]))
    assert totals(module) == module


@pytest.mark.parametrize(("name", "rounds"), diagonals(2, [*CELLS, *OTHERS], [3, 1, 0]))
def test_values_and_derivatives(name: str, rounds: int) -> None:
    if rounds == 0 and name == "one row":
        rounds = 2
    generator = torch.Generator().manual_seed(2)
    shapes = ((rounds, 2, 3), (3, 3), (3, 3), (3,))
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(program({**CELLS, **OTHERS}[name]))
    point = Point(f"{name}{rounds}", text, "f", args)
    compare(point, Changed(text, verified(lambda module: canonical.stored(totals(module)))))
    compare(point, Changed(text, verified(passes.canonical_form)))
    compare(point, Changed(text, verified(passes.optimise)))


# A result that is some rows of a state, and whether it is a view of them.
ROWS = {
    "h : Tensor[T + 1, B, N]|y[t, i, n] = h[t + 1, i, n]": True,
    "h : Tensor[T + 2, B, N]|y[t, i, n] = h[t + 1, i, n]": True,
    "h : Tensor[T + 1, B, N]|y[t, i, n] = h[t + 0, i, n]": False,
    "h : Tensor[T + 1, B, N]|y[t, i, n] = h[t + 1, i, n]\n    y[0, i, n] = 1.0": False,
    "h : Tensor[T + 1, B, N]|y[t, i, n] = h[t + 1, i, n]\n    h[0, i, n] = y[0, i, n]": False,
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_of_a_state(case: str) -> None:
    declared, copy = case.split("|")
    value = "sin(x[t, i, n] + sum(h[t, i, m] * u[m, n] for m in N))"
    loop = f"for t in range(T):\n    h[t + 1, i, n] = {value}"
    text = program(f"{declared}\n{loop}\n" + copy.replace("\n    ", "\n"))
    printed = print_function(passes.canonical_form(parse(text)).function("f"))
    assert ("slice(h, dim=0" in printed) == ROWS[case]
    generator = torch.Generator().manual_seed(2)
    shapes = ((3, 2, 3), (3, 3), (3, 3), (3,))
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(text)
    point = Point(case, text, "f", args)
    compare(point, Changed(text, verified(canonical.stored)))
    compare(point, Changed(text, verified(passes.optimise)))
