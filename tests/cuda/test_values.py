"""Arrays, structs and stacks of scalar functions on a device: values.h, on the shim."""

from __future__ import annotations

import numpy as np
import pytest
from shim_device import Form, Kernel

from loma import pipeline
from loma.backends.cuda import texts
from loma.errors import BackendLacksOperator

# y[p] = f(x[p], p), in a kernel with one thread an element.
TEXT = """
template <typename real>
struct Pair {{
  std::array<real, 2> parts{{}};
  int64_t n{{}};
}};

template <typename real>
static inline std::tuple<real, Pair<real>> both(real x) {{
  Pair<real> pair{{}};
  loma::at(pair.parts, 1, "both", 2) = x;
  return {{x + 1, pair}};
}}

template <typename real>
static inline void set(loma::Span<real> w, int64_t i) {{
  loma::at(w, i, "set", 3) += real(1);
}}

template <typename real>
static inline real f(real x, int64_t p) {{
{body}
}}

LOMA_KERNEL kernel(real* __restrict y, const real* __restrict x, const loma::Grid grid_) {{
  [[maybe_unused]] loma::Outside outside_(grid_);
  loma::statement(grid_, [&](const int64_t p_, [[maybe_unused]] const auto& part_) {{
    y[p_] = f<real>(x[p_], p_);
  }});
}}
"""
X = np.array([0.5, -1.5, 2.0, 4.0, 3.0])
COUNT = len(X)


def run(body: str) -> tuple[list[float], Kernel]:
    kernel = Kernel(texts.VALUES + TEXT.format(body=body))
    y = np.full(COUNT, np.nan)
    kernel.launch(Form(threads=32, blocks=1, real="double"), [y, X], COUNT)
    return y.tolist(), kernel


def test_results_are_taken_apart() -> None:
    y, kernel = run("""
  real u{};
  Pair<real> c{};
  std::tie(u, c) = both<real>(x);
  return u + 10 * loma::at(c.parts, 1, "f", 1) + loma::at(c.parts, 0, "f", 1);""")
    assert y == (X + 1 + 10 * X).tolist()
    assert kernel.report.state == 0


def test_stacks_grow_as_far_as_they_are_needed() -> None:
    y, kernel = run("""
  std::vector<Pair<real>> deep{};
  std::vector<int64_t> stack{};
  for (int64_t i = 0; i < 100 * p; ++i) {
    loma::push(stack, i, -1, "f", 1);
    Pair<real> pair{};
    pair.n = i;
    loma::push(deep, pair, -1, "f", 1);
  }
  int64_t total = 0, last = 0;
  Pair<real> pair{};
  for (int64_t i = 100 * p; i > 0; --i) {
    loma::pop(last, stack, "f", 1);
    loma::pop(pair, deep, "f", 1);
    if (last == i - 1 && pair.n == last) ++total;
  }
  return total + x;""")
    assert y == (X + 100 * np.arange(COUNT)).tolist()
    assert kernel.report.state == 0


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("std::array<real, 2> a{}; loma::at(a, 2 + p, \"f\", 7) = x; return a[0];", (2, 2, 7)),
        ("std::array<real, 2> a{}; return loma::at(a, -1 - p, \"f\", 7) + x;", (-1, 2, 7)),
        ("std::array<real, 3> a{}; set<real>(a, 3 + p); return a[0] + x;", (3, 3, 3)),
        (
            "std::vector<real> s{}; loma::push(s, x, 1, \"f\", 4); loma::push(s, x, 1, \"f\", 5);"
            "return s.back() + p;",
            (1, 5),
        ),
        ("std::vector<real> s{}; loma::pop(x, s, \"f\", 6); return x + p;", (6,)),
    ],
)  # fmt: skip
def test_what_fails_is_told_and_leaves_other_memory_alone(
    body: str, numbers: tuple[int, ...]
) -> None:
    y, kernel = run(f"  {body}")
    assert np.isfinite(y).all()
    report = kernel.report
    assert report.told()[0] == ("set" if "set<" in body else "f")
    found = tuple(report.numbers)[: len(numbers)]
    if report.kind == 9:  # any of the threads' subscripts
        assert found[1:] == numbers[1:]
        assert abs(found[0] - numbers[0]) < COUNT
    else:
        assert found == numbers


def test_what_no_thread_has_memory_for_is_refused() -> None:
    text = """
def most(x : In[float]) -> float:
    a : Array[float, 10000]
    a[3] = x
    return a[3]

def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = most(x[i])
    return y
"""
    assert "most__scalar" in pipeline.stage_text(text, "source")
    with pytest.raises(BackendLacksOperator, match="a call of 'most' may take 80"):
        pipeline.stage_text(text, "source", device="cuda")
