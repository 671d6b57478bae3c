"""``loma show --device cuda``: what GPUs run, as golden files. Nothing is compiled here."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from sampled import one_in
from index_cases import CASES as INDEX_CASES
from index_cases import Case

from loma import pipeline
from loma.frontend import parse

# Products and convolutions of libraries, a team for a sum, loops on one thread, a kernel of several
# statements, a number that stays on the device.
MIXED = """
def mixed(
    x : In[Tensor[N, M]], w : In[Tensor[M, M]], s : In[Tensor[B, C, H, W]],
    k : In[Tensor[O, C, P, Q]], at : In[IntTensor[N]], a : In[float],
) -> tuple[Tensor[N, M], Tensor[B, O, H - P + 1, W - Q + 1], Tensor[N], float]:
    y : Tensor[N, M]
    z : Tensor[B, O, H - P + 1, W - Q + 1]
    r : Tensor[N]
    y[i, j] += x[i, l] * w[l, j]
    z[b, o, h, v] += s[b, c, h + p, v + q] * k[o, c, p, q]
    r[at[i]] += y[i, t]
    for t in range(1, N):
        r[t] = r[t - 1] * x[t, 0]
    y[i, j] = max(y[i, j], 0.0) * a
    return y, z, r, sum(r[i] * r[i] for i in N)
"""
NORMALISED = """
def normalised(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[N, D]:
    s : Tensor[N]
    y : Tensor[N, D]
    s[i] = sum(x[i, d] * x[i, d] for d in D)
    y[i, d] = x[i, d] * g[d] / sqrt(s[i] / int2float(D) + 1e-5)
    return y
"""
# y reads of e what its iteration has written, z other elements.
ELEMENTWISE = """
def weighted(x : In[Tensor[N, D]], w : In[Tensor[D]]) -> tuple[Tensor[N, D], Tensor[N, D]]:
    s : Tensor[N]
    e : Tensor[N, D]
    y : Tensor[N, D]
    z : Tensor[N, D]
    s[i] = sum(x[i, d] for d in D)
    e[i, d] = exp(x[i, d] - s[i])
    y[i, d] = e[i, d] * w[d]
    z[i, d] = y[i, d] + e[i, D - 1 - d]
    return y, z
"""
CASES = {
    "kernels": ("mixed", MIXED, "loma"),
    "schedule": ("normalised__backward", NORMALISED, "txt"),
    "source": ("normalised__backward", NORMALISED, "cu"),
}


@pytest.mark.parametrize("stage", CASES)
def test_golden(stage: str, golden: Callable[[str, str], None]) -> None:
    function, text, ending = CASES[stage]
    shown = pipeline.stage_text(text, stage, function, "golden.loma", device="cuda")
    golden(f"cuda_{stage}.{ending}", shown)


def test_statements_over_the_same_elements_share_a_loop() -> None:
    shown = pipeline.stage_text(ELEMENTWISE, "schedule", "weighted", device="cuda")
    loops = re.findall(r"parallel for d .*writes (.*)\n", shown)
    assert loops == ["e, y", "z"]
    on_the_cpu = pipeline.stage_text(ELEMENTWISE, "schedule", "weighted")
    assert "writes e, y" not in on_the_cpu


def test_an_iteration_has_one_value_of_all_indices_that_statements_share() -> None:
    text = """
def squash(s : In[Tensor[B, H, N, D]]) -> Tensor[B, H, N, D]:
    q : Tensor[B, H, N]
    v : Tensor[B, H, N, D]
    q[b, h, n] += s[b, h, n, d] * s[b, h, n, d]
    v[b, h, n, d] = s[b, h, n, d] * (sqrt(q[b, h, n]) / (1.0 + q[b, h, n]))
    return v

def among(s : In[Tensor[B, N, D]]) -> Tensor[B, N, D]:
    q : Tensor[B, N]
    v : Tensor[B, N, D]
    q[b, n] += s[b, n, d] * s[b, n, d]
    v[b, n, d] = s[b, n, d] * q[b, N - 1 - n]
    return v
"""
    shown = pipeline.stage_text(text, "kernels", "squash", device="cuda")
    assert "parallel b, h, n in range(B), range(H), range(N):" in shown
    assert "private q : Tensor[()]" in shown
    others = pipeline.stage_text(text, "kernels", "among", device="cuda")
    assert "parallel b in range(B):" in others
    assert "parallel b in range(B):" in pipeline.stage_text(text, "kernels", "squash")


def test_source_is_every_function_that_a_call_may_need() -> None:
    shown = pipeline.stage_text(NORMALISED, "source", device="cuda")
    for name in ("normalised", "normalised__forward", "normalised__backward"):
        assert f"::{name}" in shown
    assert shown == pipeline.stage_text(NORMALISED, "cpp", device="cuda")


def test_libraries_and_kernels_are_told_apart() -> None:
    shown = pipeline.stage_text(MIXED, "kernels", "mixed", device="cuda")
    remarks = [line.partition("  # ")[2] for line in shown.splitlines()]
    assert "a matrix product, by cuBLAS" in remarks
    assert "a convolution, by cuDNN" in remarks
    on_the_cpu = pipeline.stage_text(MIXED, "kernels", "mixed")
    assert "cuBLAS" not in on_the_cpu


@pytest.mark.parametrize(
    ("stage", "device", "function", "message"),
    [
        ("cpp", "rocm", None, "no device 'rocm': the devices are cpu, cuda"),
        ("adjoint", "cuda", None, "the stage adjoint is the same for all devices"),
        ("c", "cuda", None, "--device cuda is for kernels, schedule, cpp"),
        ("cpp", "cuda", "normalise", "has no function 'normalise': did you mean 'normalised'"),
    ],
)
def test_what_there_is_no_text_of(
    stage: str, device: str, function: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline.stage_text(NORMALISED, stage, function, device=device)


def test_scalar_functions_have_no_part_of_their_own() -> None:
    scalar = "def half(x : In[float]) -> float:\n    return x / 2.0\n"
    with pytest.raises(ValueError, match="has no function of tensors and no @simd function"):
        pipeline.stage_text(scalar, "source", device="cuda")
    with pytest.raises(ValueError, match="'half' is a scalar function: GPUs run it inside of"):
        pipeline.stage_text(scalar + NORMALISED, "source", "half", device="cuda")


@pytest.mark.parametrize("case", one_in(3, INDEX_CASES), ids=lambda case: case.name)
def test_kernels_of_every_index_statement(case: Case) -> None:
    """With their derivatives: what a GPU's search for kernels meets there, other devices do not."""
    function = parse(case.text).functions[-1].name
    shown = pipeline.stage_text(case.text, "kernels", f"{function}__backward", device="cuda")
    assert f"def {function}__backward(" in shown


# Rows of two indices, of which each has two numbers.
ROWS = """
def scaled(x : In[Tensor[B, N, D]], w : In[Tensor[N]]) -> Tensor[B, N, D]:
    q : Tensor[B, N]
    y : Tensor[B, N, D]
    q[b, n] = sum(x[b, n, d] * x[b, n, d] for d in D)
    y[b, n, d] = x[b, n, d] / sqrt(1.0 + q[b, n])WEIGHT
    return y
"""


def test_numbers_of_an_iteration_are_in_registers() -> None:
    shown = pipeline.stage_text(ROWS.replace("WEIGHT", ""), "source", "scaled", device="cuda")
    assert re.search(r"real q\[1\]", shown)
    assert "workspace_.add" not in shown
    fused = shown[: shown.index("kernel2")]
    assert "part_.leads()" not in fused  # all threads find them
    # what holds a value for each element of a row is in memory, and threads meet behind it
    rows = ROWS.replace("WEIGHT", "\n    y[b, n, d] = y[b, n, D - 1 - d] * q[b, n]")
    assert "team_.beside" in pipeline.stage_text(rows, "source", "scaled", device="cuda")


def test_places_of_several_indices_are_those_of_an_iteration() -> None:
    shown = pipeline.stage_text(ROWS.replace("WEIGHT", ""), "source", "scaled", device="cuda")
    assert "x_data_[iteration_ * D + d]" in shown
    weighted = ROWS.replace("WEIGHT", " * w[n]")  # which needs one of the indices
    shown = pipeline.stage_text(weighted, "source", "scaled", device="cuda")
    assert "x_data_[iteration_ * D + d]" in shown
    assert "w_data_[n]" in shown


def test_of_sums_that_share_what_they_read_a_thread_has_several() -> None:
    text = """
def predicted(W : In[Tensor[I, R, O, K]], X : In[Tensor[B, R, K]]) -> Tensor[B, I, R, O]:
    U : Tensor[B, I, R, O]
    U[b, i, r, o] = sum(W[i, r, o, k] * X[b, r, k] for k in K)
    return U
"""
    shown = pipeline.stage_text(text, "source", "predicted", device="cuda")
    assert "loma::several_at_once(grid_, B, I, " in shown  # W has all but that, and X lacks i
    shifted = text.replace("W[i, r, o, k] *", "W[i, r, o, (k + b) % K] *")
    shown = pipeline.stage_text(shifted, "source", "predicted", device="cuda")
    assert "several_at_once(grid_, B, " not in shown  # the place of W is not affine in b
    padded = """
def of_filters(x : In[Tensor[C, H, W]], g : In[Tensor[C, H, W]]) -> Tensor[5, H, W]:
    k : Tensor[5, H, W]
    k[q, h, w] = sum(g[c, h, w] * zero_pad(x[c, h, w + q - 2]) for c in C)
    return k
"""
    shown = pipeline.stage_text(padded, "source", "of_filters", device="cuda")
    assert "loma::several_at_once(grid_, 5, W, " in shown  # g lacks q, which says what lies inside
    assert "loma::read_if(loma::inside(w + q - 2, W), " in shown
    assert "launch_.statement(5 * H * W, C, true, 1, 5, 1, W, true);" in shown  # pairs along w
    strided = padded.replace("w + q - 2", "2 * w + q - 2")
    shown = pipeline.stage_text(strided, "source", "of_filters", device="cuda")
    assert "loma::several_at_once(grid_, 5, 1, " in shown  # neighbours' x lie apart


def test_threads_that_join_sums_twice_have_more_numbers() -> None:
    norm = """
def norm(x : In[Tensor[N, D]]) -> Tensor[N, D]:
    m : Tensor[N]
    v : Tensor[N]
    y : Tensor[N, D]
    m[n] = sum(x[n, d] for d in D) / D
    v[n] = sum((x[n, d] - m[n]) ** 2 for d in D) / D
    y[n, d] = (x[n, d] - m[n]) / sqrt(v[n])
    return y
"""
    shown = pipeline.stage_text(norm, "source", "norm", device="cuda")
    assert "loma::gpu::kMoreNumbers" in shown
    assert "loma::divide<real>(x_1_[d] - m[0], _sqrt[0])" in shown  # its reciprocal once, no branch
    once = norm.replace("m[n] = sum(x[n, d] for d in D) / D", "m[n] = x[n, 0]")
    assert "kMoreNumbers" not in pipeline.stage_text(once, "source", "norm", device="cuda")


def test_a_second_axis_of_sums_halves_what_is_read() -> None:
    text = """
def gradient(G : In[Tensor[B, I, R, O]], X : In[Tensor[B, R, K]]) -> Tensor[I, R, O, K]:
    W : Tensor[I, R, O, K]
    W[i, r, o, k] = sum(G[b, i, r, o] * X[b, r, k] for b in B)
    return W
"""
    shown = pipeline.stage_text(text, "source", "gradient", device="cuda")
    assert "loma::several_at_once(grid_, O, K, " in shown  # k is the last one, along which X lies
    last = "loma::rest(p_, rest1_, loma::groups_beside(part_, K))"  # a multiple of how many it has
    assert f"const auto k = loma::several_beside(part_, {last});" in shown
    across = text.replace("X[b, r, k]", "X[b, k, r]").replace("Tensor[B, R, K]", "Tensor[B, K, R]")
    shown = pipeline.stage_text(across, "source", "gradient", device="cuda")
    assert "loma::several_at_once(grid_, O, K, " not in shown  # neighbours would read far apart


def test_a_thread_has_all_of_two_short_axes() -> None:
    text = """
def gradient(g : In[Tensor[C, H, W]], x : In[Tensor[C, H, W]]) -> Tensor[5, 3, H, W]:
    k : Tensor[5, 3, H, W]
    k[p, q, h, w] = sum(g[c, h, w] * zero_pad(x[c, h + p, w + q]) for c in C)
    return k
"""
    shown = pipeline.stage_text(text, "source", "gradient", device="cuda")
    assert "loma::several_at_once(grid_, 3, 5, " in shown  # g is read once for fifteen
    longer = text.replace("Tensor[5, 3, H, W]", "Tensor[8, 3, H, W]")
    shown = pipeline.stage_text(longer, "source", "gradient", device="cuda")
    assert "loma::several_at_once(grid_, 3, W, " in shown


def test_what_is_added_to_elements_is_read_before_others_are_written() -> None:
    text = """
def added(x : In[Tensor[B, N, D]], n : In[int]) -> Tensor[B, N, D]:
    y : Tensor[B, N, D]
    q : Tensor[B, N]
    for t in range(n):
        q[b, i] = sum(x[b, i, d] for d in D) + 1.0 * t
        y[b, i, d] += x[b, i, d] * q[b, N - 1 - i]
    return y
"""
    shown = pipeline.stage_text(text, "source", "added", device="cuda")
    assert "team_.template adding<real>(D * N, D, " in shown
    assert "part_.add(y_data_[" in shown


def test_tensors_made_of_what_they_held_are_no_passes() -> None:
    text = """
def added(x : In[Tensor[N, M]], w : In[Tensor[M, M]]) -> Tensor[N, M]:
    y : Tensor[N, M] = x
    y += y / (x * x + 1.5)
    y += softmax(y, dim=1)
    y += matmul(y, w)
    return y
"""
    assert "added__backward" in pipeline.stage_text(
        text, "kernels", "added__backward", device="cuda"
    )


def test_numbers_of_an_iteration_are_read_before_it_waits() -> None:
    shown = pipeline.stage_text(NORMALISED, "source", "normalised__backward", device="cuda")
    iterations = re.findall(r"char\* const memory_\) \{\n(.*?)team_\.(.*?)\n  \}", shown, re.S)
    early = [(before, behind) for before, behind in iterations if "early1_ = _sqrt_" in before]
    assert len(early) == 2
    for _, behind in early:
        assert "early1_ != " in behind
        assert re.search(r"\b_sqrt_\d+_\[0\]", behind) is None
