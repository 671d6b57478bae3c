"""The texts that test_device.py runs on the CPU, compiled as for GPUs, where NVRTC is installed."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import device_texts as texts
import pytest
from shim_device import REALS, Form

from loma import pipeline
from loma.backends.cuda import nvrtc
from loma.backends.cuda.forms import forms, kernels, options
from loma.errors import ToolchainError

# What is declared or written and never used, and const objects without a value.
_NO_WARNINGS = [f"--diag-error={number}" for number in (177, 550, 811)]

NEWER = "sm_999"  # than any that NVRTC knows: it gives PTX

REDUCTIONS = {
    "row sums": texts.ROW_SUMS, "int sums": texts.INT_SUMS, "products": texts.PRODUCTS,
    "largest": texts.LARGEST, "argmin": texts.best("Argmin"),
}  # fmt: skip
OTHERS = {"columns": texts.COLUMNS, "gather": texts.GATHER, "special": texts.SPECIAL}
FORMS = [
    Form(256, 1), Form(256, 8), Form(64, 32), Form(512, 512), Form(256, 8, True),
    Form(1024, 32, True),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def nvrtc_is_there() -> None:
    try:
        nvrtc.find()
    except ToolchainError:
        pytest.skip("NVRTC is not installed")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, architecture: str) -> None:
    for form, real in zip(FORMS, itertools.cycle(REALS), strict=False):
        for stage in range(3):
            made = _form(form, real, stage)
            assert nvrtc.image("kernel", REDUCTIONS[name], made, architecture)


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("name", OTHERS)
def test_other_statements(name: str, real: str) -> None:
    known = ("-DLOMA_KNOWN", "-DLOMA_KNOWN_0=7", "-DLOMA_KNOWN_1=9")
    for form in FORMS if name == "columns" else FORMS[:1]:
        for numbers in ((), known):
            options = [*_form(form, real), *numbers]
            assert nvrtc.image("kernel", OTHERS[name], options, "sm_90")


@pytest.mark.parametrize("real", REALS)
def test_private_memory_and_one_thread(real: str) -> None:
    for form in FORMS[:4]:
        for shared in (True, False):
            options = _form(replace(form, shared=shared), real)
            assert nvrtc.image("kernel", texts.SOFTMAX, options, "sm_90")
    assert nvrtc.image("kernel", texts.SERIAL, _form(Form(1), real), "sm_90")


PROGRAM = """
def normalised(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[N, D]:
    m : Tensor[N]
    v : Tensor[N]
    y : Tensor[N, D]
    m[i] = sum(x[i, d] for d in D) / int2float(D)
    v[i] = sum((x[i, d] - m[i]) ** 2 for d in D) / int2float(D)
    y[i, d] = smooth((x[i, d] - m[i]) / sqrt(v[i] + 1e-5) * g[d], g[d]) + m[i]
    return y

def smooth(x : In[float], y : In[float]) -> float:
    return tanh(x) * y + exp(x * y) - 2.0 * y
"""


@pytest.mark.parametrize("function", ["normalised", "normalised__backward"])
def test_the_compiler_joins_no_product_and_sum(function: str) -> None:
    """Or a kernel for known numbers, in which loops are unrolled, might round otherwise: every
    operation of the text in PTX, which the driver's compiler sees, says how it is rounded."""
    stage = pipeline.program(PROGRAM, every=True)
    found: set[str] = set()
    for kernel in kernels(pipeline.device_part(stage, function, "ns")):
        for form, real in itertools.product(forms(kernel)[-2:], REALS):
            told = [*options(kernel, form, real), *_NO_WARNINGS]
            ptx = nvrtc.image(kernel.name, kernel.text, told, NEWER).decode()
            operations = set(re.findall(r"\b(?:add|sub|mul|fma|mad)\.(?:\w+\.)*f(?:32|64)\b", ptx))
            found |= operations
            unrounded = {one for one in operations if not re.search(r"\.r[nzmp]\.", one)}
            assert not unrounded, (kernel.name, form)
    assert {"fma.rn.f32", "fma.rn.f64"} <= found


def _form(form: Form, real: str, stage: int = 0) -> list[str]:
    return [*replace(form, real=real).options(stage), *_NO_WARNINGS]
