"""What a report suggests for a name that does not exist: what is misspelt, or what loma has instead
of a function of PyTorch, NumPy or Python, and never a function of another meaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from loma import errors
from loma.backends.interpreter import Interpreter
from loma.core.builtins import BUILTINS
from loma.core.ops import OPS
from loma.errors import spelling
from loma.errors.spelling import nearest
from loma.frontend import foreign, parse

PROGRAM = """
def f(x : In[Tensor[N, M]], n : In[IntTensor[N]]) -> Tensor[N, M]:
    y = {call}
    return y
"""


def _error(call: str) -> errors.UserError:
    with pytest.raises(errors.UserError) as caught:
        parse(PROGRAM.format(call=call))
    return caught.value


# Functions of PyTorch, NumPy and Python; then names as people mistype those of loma.
ELSEWHERE = """
    abs_ absolute acosh add_ addmm all allclose angle any append arange arccos arcsin arctan arctan2
    argwhere around asinh astype atanh average avg_pool1d avg_pool3d adaptive_avg_pool2d baddbmm
    batch_norm bernoulli bincount bmm bool broadcast_to bucketize cbrt cdist celu chunk clamp_max
    clamp_min clip clone concat concatenate contiguous conv_transpose1d convolve copy copysign
    corrcoef cosine_similarity count_nonzero cov cross cross_entropy cummax cummin deg2rad detach
    diag diagonal diff dist divide dot dropout dstack einsum embedding empty enumerate equal erfinv
    expand_dims eye fabs fft fill flatten fliplr float float_power floor_divide fmax fmin fmod frac
    full gcd ger glu greater group_norm hardswish hardtanh heaviside histc hstack hypot index_select
    inner instance_norm int interp inv inverse isclose isinf item kron kthvalue l1_loss len lerp
    less linspace list log10 logaddexp logical_and logical_not logical_or lstsq masked_fill
    matrix_power max_pool1d maximum median meshgrid minimum mish mm mode moveaxis movedim mse_loss
    multinomial multiply mv nan_to_num nanmean nansum narrow negative nll_loss nonzero normalize
    not_equal numel outer pad permute_dims pinverse polyfit power prelu print product quantile
    rad2deg rand randint randn range ravel reciprocal relu6 remainder repeat repeat_interleave
    reshape_as reversed rms_norm rot90 rrelu scaled_dot_product_attention scatter searchsorted
    select selu set shape sgn signbit sinc size slogdet softmin softsign solve sorted square squeeze
    str subtract sum_ svd swapaxes swish t take take_along_axis tensordot tile trace transpose_
    true_divide trunc unfold unique unsqueeze upsample vdot view vstack xlogy zero zip
"""
MISSPELT = """
    reul rleu Relu sigmod sigmoig Sigmoid tahn than softmx sofmax log_sofmax logsoftmax matmull
    mat_mul linaer conv_2d con2d conv2D max_pool maxpool2d avgpool2d reshap reshpae permut transpos
    slic one_hoy onehot gathre one zeroes sqr sqart squrt expp lg logg powr mean_ maen amaxx agrmax
    argmx summ su prd minn mx floot int_to_float int2flaot float2Int float_to_int nodiff no_dif
    zeropad zero_pda wher argmni softmaks
"""


def test_every_suggestion(golden: Callable[[str, str], None]) -> None:
    """Read the file as somebody would who has written the name on the left."""
    lines = []
    for name in (ELSEWHERE + MISSPELT).split():
        hint = str(_error(f"{name}(x)").hint)
        lines.append(f"{name}: {re.sub('^the operators are .*', '(all operators)', hint)}")
    golden("suggestions.txt", "\n".join(lines))


@pytest.mark.parametrize("name", ["median", "mish", "erfinv", "vmap"])
def test_what_there_is_none_of(name: str) -> None:
    error = _error(f"{name}(x)")
    assert isinstance(error, errors.CallIDNotFound)
    assert error.message == f"there is no operator '{name}'"
    assert "did you mean" not in str(error.hint)
    if name in ("erfinv", "vmap"):
        assert str(error.hint).startswith("the operators are sin, cos, ")
    with pytest.raises(errors.CallIDNotFound, match=f"there is no function '{name}'") as caught:
        parse(f"def g(x : In[float]) -> float:\n    return {name}(x)\n")
    assert "did you mean" not in str(caught.value.hint)


def test_a_function_of_the_program_may_be_meant() -> None:
    text = "def mish_(x : In[float]) -> float:\n    return x\n"
    with pytest.raises(errors.CallIDNotFound) as caught:
        parse(text + "def f(x : In[float]) -> float:\n    return mish(x)\n")
    assert caught.value.hint == "did you mean 'mish_'?"


def _mistyped(name: str) -> list[str]:
    """Two letters swapped, one left out, one twice, another case, another underscore."""
    swapped = [f"{name[:k]}{name[k + 1]}{name[k]}{name[k + 2 :]}" for k in range(len(name) - 1)]
    short = [f"{name[:k]}{name[k + 1 :]}" for k in range(1, len(name))]
    double = [f"{name[:k]}{name[k]}{name[k:]}" for k in range(len(name))]
    return [*swapped, *short, *double, name.upper(), name.replace("_", ""), f"{name}_"]


def test_one_mistake_in_a_long_name_is_understood(pytestconfig: pytest.Config) -> None:
    names = [name for name, op in OPS.items() if not op.internal and op.infix is None]
    names += BUILTINS
    long = [name for name in names if len(name) >= 5]
    assert len(long) > 20
    for name in long if pytestconfig.getoption("--full") else long[::3]:
        for wrong in set(_mistyped(name)) - {*names, name}:
            if not foreign.is_foreign(wrong):
                near = nearest(wrong, names) or ""
                # 'agmax' is one letter from 'amax', too, 'rsqt' has the letters of 'sqrt'
                assert (
                    near == name
                    or sorted(wrong) == sorted(near)
                    or spelling._distance(wrong.lower(), near) <= 1
                )


@pytest.mark.parametrize(
    ("name", "candidates", "found"),
    [
        ("m", ["n", "k"], None),
        ("k", ["K", "n"], None),
        ("Wq", ["wq", "wk"], "wq"),
        ("dx", ["dy", "dz"], None),
        ("xd", ["dx", "dy"], "dx"),
        ("weigth", ["weight", "height"], "weight"),
        ("tensor", ["Tensor", "IntTensor"], "Tensor"),
        ("squish", ["squash", "d_squash"], "squash"),
        ("value", ["total", "weights"], None),
        ("y", ["y"], None),
    ],
)
def test_nearest(name: str, candidates: list[str], found: str | None) -> None:
    assert nearest(name, candidates) == found


# ------------------------------------------------------------------------ what is written instead


def _of_torch(name: str) -> Callable[..., Any]:
    name = {"swish": "silu", "power": "pow", "around": "round"}.get(name, name)
    return getattr(F, name, None) or getattr(torch, name)  # type: ignore[no-any-return]


WRITTEN = {**foreign.EVERYWHERE, **foreign.ON_ELEMENTS}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_hints_tell_to_write(name: str) -> None:
    """As a statement on elements, and where the hint says nothing else on whole tensors."""
    text = WRITTEN[name]
    x = torch.tensor([0.25, 0.375, 0.75], dtype=torch.float64)
    x = x + 1 if name in ("acosh", "arccosh") else x
    y = torch.tensor([2.0, 0.375, 0.3], dtype=torch.float64)
    both = (x, y) if "y" in text else (x,)
    expected = _of_torch(name)(*both).double()
    head = "(x : In[Tensor[N]], y : In[Tensor[N]]) -> Tensor[N]:\n    z : Tensor[N]\n"
    elements = re.sub(r"\b([xy])\b", r"\1[i]", text)
    program = f"def f{head}    z[i] = {elements}\n    return z\n"
    functions = ["f"]
    if name in foreign.EVERYWHERE:
        program += f"def g{head}    z = 1.0 * ({text})\n    return z\n"
        functions.append("g")
    for function in functions:
        (found,) = Interpreter(parse(program)).call(function, x.numpy(), y.numpy())
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12, err_msg=program)
