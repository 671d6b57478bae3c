"""Which functions have the same loops, as ``benchmarks/spellings.py --forms`` says."""

from __future__ import annotations

import pytest

from conftest import ROOT

HEAD = "def {}(x : In[Tensor[N, D]], w : In[Tensor[D]]) -> Tensor[N, D]:\n"
BODIES = {
    "statements": ("y : Tensor[N, D]", "y[n, d] = w[d] * sin(x[n, d]) + x[n, d]", "return y"),
    "other_names": ("r : Tensor[N, D]", "r[i, j] = w[j] * sin(x[i, j]) + x[i, j]", "return r"),
    "other_order": ("y : Tensor[N, D]", "y[n, d] = x[n, d] + sin(x[n, d]) * w[d]", "return y"),
    "operators": ("return w * sin(x) + x",),
    "another_function": ("y : Tensor[N, D]", "y[n, d] = w[d] * cos(x[n, d]) + x[n, d]", "return y"),
    "another_place": ("y : Tensor[N, D]", "y[n, d] = w[d] * sin(x[n, d]) + x[0, d]", "return y"),
    "a_difference": ("y : Tensor[N, D]", "y[n, d] = w[d] * sin(x[n, d]) - x[n, d]", "return y"),
    "turned_round": ("y : Tensor[N, D]", "y[n, d] = x[n, d] - w[d] * sin(x[n, d])", "return y"),
}


def test_what_is_one_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from one_form import alike

    text = "".join(
        HEAD.format(name) + "".join(f"    {line}\n" for line in body)
        for name, body in BODIES.items()
    )
    found = alike(text, BODIES)
    assert set(found) == {"", "__forward", "__backward"}
    same = ["statements", "other_names", "other_order", "operators"]
    for half in ("", "__forward"):
        assert found[half] == [same, *([name] for name in BODIES if name not in same)]
    assert found["__backward"][0][:2] == same[:2]
