"""A backend of one file, serial_c.py: what trees say is enough for a language without vectors."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import one_in
from conftest import ROOT
from pages import BLOCK, programs
from serial_c_host import SerialC, arguments

from loma import errors, pipeline
from loma.backends.interpreter import Interpreter

SQUASH = """
def squash(x : In[Tensor[B, N]]) -> Tensor[B, N]:
    y : Tensor[B, N]
    n : Tensor[B]
    n[b] += x[b, i] * x[b, i]
    y[b, i] = n[b] / (1.0 + n[b]) * x[b, i] / sqrt(n[b] + 0.00001)
    return y
"""
SOFTMAX = """
def softmaxed(x : In[Tensor[B, N + 1]]) -> Tensor[B, N + 1]:
    e : Tensor[B, N + 1]
    y : Tensor[B, N + 1]
    e[b, i] = exp(x[b, i] - max(x[b, j] for j in N + 1))
    y[b, i] = e[b, i] / sum(e[b, j] for j in N + 1)
    return y
"""
PRODUCT = """
def product(a : In[Tensor[M, K]], b : In[Tensor[K, N]]) -> Tensor[M, N]:
    c : Tensor[M, N]
    c[i, j] += a[i, k] * b[k, j]
    return c
"""
CONVOLUTION = """
def convolution(x : In[Tensor[B, C, H, W]], k : In[Tensor[O, C, 3, 3]]) -> Tensor[B, O, H, W]:
    y : Tensor[B, O, H, W]
    y[b, o, h, w] += zero_pad(x[b, c, h + p - 1, w + q - 1]) * k[o, c, p, q]
    return y
"""
PER_PIXEL = """
def per_pixel(x : In[Tensor[B, C, H, W]], k : In[Tensor[3, 3, B, H, W]]) -> Tensor[B, C, H, W]:
    y : Tensor[B, C, H, W]
    y[b, c, h, w] += zero_pad(x[b, c, h + p - 1, w + q - 1]) * k[p, q, b, h, w]
    return y
"""
ARGMAX = """
def picked(x : In[Tensor[B, N + 1]], w : In[Tensor[N + 1]]) -> tuple[Tensor[B], IntTensor[B]]:
    y : Tensor[B]
    p : IntTensor[B]
    p[b] = argmax(x[b, i] * w[i] for i in N + 1)
    y[b] = x[b, p[b]] * w[p[b]]
    return y, p
"""
RECURRENCE = """
def recurrence(a : In[Tensor[T + 1, B]], x : In[Tensor[T + 1, B]]) -> Tensor[T + 1, B]:
    h : Tensor[T + 1, B]
    h[0, b] = x[0, b]
    for t in range(T):
        h[t + 1, b] = tanh(a[t, b] * h[t, b]) + x[t + 1, b]
    return h
"""
WARPING = """
def warping(c : In[Tensor[M + 1, N + 1]]) -> float:
    R : Tensor[M + 2, N + 2]
    for i in range(M + 1):
        for j in range(N + 1):
            R[i + 1, j + 1] = c[i, j] * c[i, j] + min(R[i, j + 1], R[i + 1, j])
    return sum(R[i, N + 1] for i in M + 2)
"""
BRANCH = """
def branch(x : In[Tensor[N]], n : In[int], s : In[float]) -> Tensor[N]:
    y : Tensor[N]
    if n > 1 and s < 5.0:
        y[i] = x[i] * x[i] * s
    else:
        y[i] = sin(x[N - 1 - i]) / s
    return y
"""
SCALARS = """
def scalars(x : In[Tensor[N]], y : Out[Tensor[N]], s : In[float]) -> float:
    total : float = sum(x[i] * x[i] for i in N)
    y[i] = x[i] * total * s
    count : int = 0
    while (count < 3, max_iter := 5):
        y[i] += y[i] * s
        count = count + 1
    return total * s
"""
GATHER = """
def gather(x : In[Tensor[M]], at : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = square(x[at[i]]) * prod(1.0 + x[j] for j in M)
    return y

def square(x : In[float]) -> float:
    return x * x
"""
PIECES = """
def pieces(x : In[Tensor[N]]) -> Tensor[N // 2, 2]:
    y : Tensor[N // 2, 2]
    y[i, p] = x[2*i + p] if x[2*i] > 0.0 else -x[2*i + 1]
    return y
"""
PROGRAMS = {
    text.split("(")[0].split()[-1]: text
    for text in (
        SQUASH, SOFTMAX, PRODUCT, CONVOLUTION, PER_PIXEL, ARGMAX, RECURRENCE, WARPING, BRANCH,
        SCALARS, GATHER, PIECES,
    )
}  # fmt: skip
TWICE = ("squash", "product", "recurrence", "branch")


def program(name: str) -> str:
    derived = f"{PROGRAMS[name]}\nd_{name} = rev_diff({name})\nt_{name} = fwd_diff({name})\n"
    return derived + (f"dd_{name} = rev_diff(d_{name})\n" if name in TWICE else "")


@pytest.mark.parametrize("name", one_in(3, PROGRAMS))
def test_trees_as_serial_c_compute_what_the_interpreter_does(name: str) -> None:
    module = pipeline.program(program(name)).module
    interpreter, compiled = Interpreter(module), SerialC(module)
    rng = np.random.default_rng(3)
    for function in compiled.functions.values():
        for size in (1, 2, 3, 9, 0):
            args = arguments(function, size, rng)
            try:
                expected = interpreter.call(function.name, *args)
            except (ValueError, IndexError, RuntimeError):
                with pytest.raises(IndexError):
                    compiled.call(function.name, *args)
                continue
            found = compiled.call(function.name, *args)
            for value, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(value, wanted, 1e-9, 1e-12)


REFUSED = {
    "a result of another size, or that is no variable": """
def f(x : In[Tensor[N, M]]) -> Tensor[M, N]:
    return roll(transpose(x, 0, 1), [1])
""",
    "a statement of whole tensors": """
def f(x : In[Tensor[N, M]], y : Out[Tensor[M, N]]):
    y += transpose(x, 0, 1)
""",
    "'Lazy'": """
def f(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] = x[i] if x[i] > 0.0 else sum(x[j] for j in i)
""",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_serial_c_has_no_form_for_is_refused(what: str) -> None:
    module = pipeline.program(REFUSED[what]).module
    with pytest.raises(errors.BackendLacksOperator, match=what):
        SerialC(module)


def test_the_page_on_backends_shows_what_comes_out() -> None:
    (text,) = programs("docs/contributing.md")
    page = (ROOT / "docs/contributing.md").read_text("utf-8")
    (shown,) = (block[3] for block in BLOCK.finditer(page) if block[1] == "c")
    made = SerialC(pipeline.program(text).module).text
    assert _lines(shown) in _lines(made)


def _lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())
