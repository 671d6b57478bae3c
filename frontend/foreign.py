"""Functions of PyTorch, NumPy and Python that loma has not, and what to write instead.

A name that stands here is no misspelling of one of loma's: ``gelu`` does not mean ``relu``.
"""

from __future__ import annotations

# As programs call them.
MODULES = ("torch", "np", "numpy", "math", "cmath", "F", "nn", "jnp", "jax", "tf")

_NUMBERS = {
    "pi": "3.141592653589793", "e": "2.718281828459045", "tau": "6.283185307179586",
    "euler_gamma": "0.5772156649015329", "inf": "1e400",
}  # fmt: skip
INFINITY = "1e400 is infinity, and -1e400 below all numbers"


def _by_name(table: dict[str, str]) -> dict[str, str]:
    """What stands beside words, by each of them."""
    return {name: text for text, names in table.items() for name in names.split()}


# For numbers x and y, and for tensors.
EVERYWHERE = _by_name(
    {
        "log(x + sqrt(x * x - 1.0))": "acosh arccosh",
        "acos(x)": "arccos",
        "asin(x)": "arcsin",
        "log(x + sqrt(x * x + 1.0))": "arcsinh asinh",
        "atan(x)": "arctan",
        "atan2(x, y)": "arctan2",
        "0.5 * log((1.0 + x) / (1.0 - x))": "arctanh atanh",
        "round(x)": "around",
        "0.017453292519943295 * x": "deg2rad",
        "x / y": "divide true_divide",
        "pow(x, y)": "float_power power",
        "x // y": "floor_divide",
        "max(x, y)": "fmax maximum",
        "min(x, y)": "fmin minimum",
        "clamp(x / 6.0 + 0.5, 0.0, 1.0)": "hardsigmoid",
        "x * clamp(x + 3.0, 0.0, 6.0) / 6.0": "hardswish",
        "clamp(x, -1.0, 1.0)": "hardtanh",
        "sqrt(x * x + y * y)": "hypot",
        "0.3010299956639812 * log2(x)": "log10",
        "y + softplus(x - y)": "logaddexp",
        "x and y": "logical_and",
        "not x": "logical_not",
        "x or y": "logical_or",
        "log(x / (1.0 - x))": "logit",
        "-softplus(-x)": "logsigmoid",
        "x * tanh(softplus(x))": "mish",
        "x * y": "multiply",
        "-x": "negative",
        "57.29577951308232 * x": "rad2deg",
        "1.0 / x": "reciprocal",
        "clamp(x, 0.0, 6.0)": "relu6",
        "x % y": "remainder",
        "x / (1.0 + abs(x))": "softsign",
        "x * x": "square",
        "x - y": "subtract",
        "x * sigmoid(x)": "swish",
        "x * log(y)": "xlogy",
    }
)
# For numbers, and so on the right of an index statement: y[i] = ...
ON_ELEMENTS = {
    "celu": "x if x > 0.0 else expm1(x)",
    "fmod": "x - y * int2float(float2int(x / y))",
    "frac": "x - int2float(float2int(x))",
    "selu": "1.0507009873554805 * (x if x > 0.0 else 1.6732632423543772 * expm1(x))",
    "trunc": "int2float(float2int(x))",
}

_IN_PYTORCH = "do it in PyTorch, before or after the call"
_STATEMENT = "write an index statement: "
_HINTS = _by_name({
    "a mean is mean(x[i] for i in N), or mean(x, dims) of a tensor": "average nanmean",
    "conversions are int(x) and float(n)": "astype item long to",
    "int tensors are IntTensor[...], which index statements fill; x != 0 is 0 or 1": "bool",
    "join with cat([x, y], dim)": "concat concatenate hstack vstack dstack",
    "join with stack([x, y], 1)": "column_stack",
    "take its results apart: a, b = split(x, [m, n], dim)": "chunk split unbind",
    "reshape(x, [N, -1]) has any shape of as many elements":
        "expand_dims flatten ravel reshape_as resize squeeze unflatten unsqueeze view",
    "permute(x, [0, 2, 1]) and transpose(x, 0, 1) move dimensions":
        "moveaxis movedim permute_dims swapaxes t",
    "expand(x, [B, N]) repeats along new dimensions and those of size 1": "broadcast_to expand_as",
    "x[a:b] is a part of a tensor, as is slice(x, dim, start, end)": "narrow",
    f"{_STATEMENT}y[i] = x[i % N]": "repeat tile",
    f"{_STATEMENT}y[i] = x[i // 2]": "repeat_interleave",
    "flip(x, [1]) and flip(x, [0]) reverse dimensions": "fliplr flipud",
    f"{_STATEMENT}y[i, j] = x[j, N - 1 - i]": "rot90",
    f"{_STATEMENT}y[i] = x[i, i], or s += x[i, i]": "diag diagonal trace",
    f"{_STATEMENT}y[i, j] = 1.0 if i == j else 0.0": "eye identity",
    f"{_STATEMENT}y[i] = i": "arange",
    f"{_STATEMENT}y[i] = a + (b - a) * i / (N - 1)": "linspace",
    f"{_STATEMENT}y[i, d] = x[t[i], d]":
        "embedding index_select select take take_along_axis take_along_dim",
    f"{_STATEMENT}y[t[i]] += x[i]": "bincount histc histogram index_add scatter",
    f"{_STATEMENT}C[i, j] += A[i, k] * B[k, j]": "einsum tensordot kron",
    f"{_STATEMENT}C[i, j] = a[i] * b[j]": "ger outer",
    f"{_STATEMENT}s += a[i] * b[i]": "dot inner vdot",
    f"{_STATEMENT}y[i] += a[i, j] * b[j]": "mv",
    f"{_STATEMENT}y[n, o, t] += x[n, c, t + k] * w[o, c, k]": "convolve correlate unfold",
    f"{_STATEMENT}y[n, o, t + k] += x[n, c, t] * w[c, o, k]": "conv_transpose1d conv_transpose3d",
    f"{_STATEMENT}y[n, c, t] = max(x[n, c, 2 * t + k] for k in range(2))":
        "adaptive_max_pool2d max_pool1d max_pool3d",
    f"{_STATEMENT}y[n, c, t] = sum(x[n, c, 2 * t + k] for k in range(2)) / 2":
        "adaptive_avg_pool2d avg_pool1d avg_pool3d",
    "read zero outside in an index statement: y[i] += zero_pad(x[i + k - 1]) * w[k]":
        "pad constant_pad",
    "matmul(a, b) takes matrices and stacks of them": "bmm mm multi_dot",
    "write matmul(a, b) + c": "addmm baddbmm",
    "write clamp(x, low, high), max(x, low) or min(x, high)": "clamp_max clamp_min clip",
    "write x + w * (y - x)": "lerp",
    "amax(x, dims) is of a tensor, max(x, y) of numbers": "nanmax ptp",
    "amin(x, dims) is of a tensor, min(x, y) of numbers": "nanmin",
    "write sum(x, dims), with where(x == x, x, 0.0) for x": "nansum",
    "carry a running value through a loop: for t in range(N): s += x[t], and then y[t] = s":
        "cummax cummin logcumsumexp",
    "write prod(x[i] for i in N), or prod(x, dims) of a tensor": "nanprod product",
    "write norm(x, dims)": "vector_norm",
    "write norm(x - y)": "dist",
    "write x / norm(x, dims, keepdim=True)": "normalize",
    "write d / sqrt(mean(d * d, dims, True) + 1e-5) with d = x - mean(x, dims, True)":
        "batch_norm group_norm instance_norm",
    "write x / sqrt(mean(x * x, dims, True) + 1e-6)": "rms_norm",
    "write softmax(-x, dim)": "softmin",
    "write mean((x - y) * (x - y))": "mse_loss",
    "write mean(abs(x - y))": "l1_loss",
    "write -mean(gather(log_softmax(x, 1), reshape(t, [N, 1]), 1))": "cross_entropy nll_loss",
    "write softmax(matmul(q, transpose(k, 1, 2)) / sqrt(d), 2), and matmul(..., v)":
        "multi_head_attention_forward scaled_dot_product_attention",
    "where(cond, a, b) chooses, or a if cond else b on elements":
        "copysign heaviside masked_fill nan_to_num threshold",
    "write not (isfinite(x) or isnan(x))": "isinf",
    "of elements write max(x[i] != 0.0 for i in N)": "any",
    "of elements write min(x[i] != 0.0 for i in N)": "all allclose array_equal",
    "write sum(x[i] != 0.0 for i in N)": "count_nonzero",
    "write x == y, x < y and their like":
        "equal greater greater_equal isclose less less_equal not_equal",
    "write a product: c * ones([N, M])": "full full_like",
    "a declared tensor starts at zero: y : Tensor[N, M]": "empty empty_like new_zeros",
    "no_diff(x) stops derivatives": "detach stop_gradient",
    "an assignment copies: y : Tensor[N] = x": "clone contiguous copy deepcopy",
    "sizes are the names in the tensor's type": "dim len ndim numel shape size",
    "random numbers come from PyTorch: pass a tensor of them":
        "bernoulli dropout multinomial normal rand randint randn random randperm uniform",
    "tensors are sorted with values, indices = sort(x, dim) and topk(x, k, dim)":
        "kthvalue median mode msort percentile quantile searchsorted sort sorted topk unique",
    f"loma does not solve or decompose: {_IN_PYTORCH}":
        "cholesky det eig eigh inv inverse lstsq lu matrix_exp matrix_power pinv pinverse qr "
        "slogdet solve svd",
    _IN_PYTORCH:
        "argwhere bucketize cdist corrcoef cosine_similarity cov cross diff fft ifft interp "
        "interpolate irfft masked_select meshgrid nonzero rfft upsample",
    "convert with float(x)": "double half",
    "int(x) and float(x) convert one number": "int float",
    "a range stands only in 'for i in range(n)'": "range",
    "it stands only in 'for i in reversed(range(n))'": "reversed",
    "it is a statement of its own: zero(x)": "zero zero_",
    "write abs(x)": "absolute fabs",
    "write sign(x)": "sgn",
    "nothing is printed while a function runs: return the value": "print",
})  # fmt: skip
# There is nothing like them.
_NOTHING = (
    "angle", "bilinear", "bin", "cbrt", "cond", "dict", "enumerate", "erfinv", "filter", "gcd",
    "glu", "input", "isin", "isqrt", "list", "map", "max_unpool1d", "max_unpool2d", "max_unpool3d",
    "open", "perm", "prelu", "rrelu", "set", "signbit", "sinc", "smm", "str", "tuple", "zip",
)  # fmt: skip


def is_foreign(name: str) -> bool:
    name = name.rstrip("_")  # of what works in place
    return name in EVERYWHERE or name in ON_ELEMENTS or name in _HINTS or name in _NOTHING


def constant(name: str) -> str | None:
    """A hint for a number that modules have."""
    if name not in _NUMBERS:
        return None
    return (
        f"write a constant at the top level of the file: {name.upper()} : float = {_NUMBERS[name]}"
    )


def instead(name: str, of_tensor: bool) -> str | None:
    """A hint for a foreign function, where there is something to write instead."""
    name = name.rstrip("_")
    if name in EVERYWHERE:
        return f"write {EVERYWHERE[name]}"
    if name in ON_ELEMENTS:
        return f"{'on elements ' if of_tensor else ''}write {ON_ELEMENTS[name]}"
    return _HINTS.get(name)
