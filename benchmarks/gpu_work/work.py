"""What is measured: functions of tensors, by loma and by PyTorch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import layers as cpu_layers
import torch
import torch.nn.functional as F
from capsules import einsum as routing_einsum
from capsules import einsum_broadcast as routing_broadcast
from torch import Tensor

import loma
from capsnet_loma import layers, reference

FOLDER = Path(__file__).resolve().parent
SPELLINGS = FOLDER.parent / "spellings"
FORWARD, BOTH = "forward", "forward + backward"

Function = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Work:
    """``inputs`` makes a set of arguments on a device; ``peers`` are forms of the same in PyTorch;
    ``own`` compiles loma's.

    ``others``: forms of other libraries, made where those are installed (``papers`` measures them).
    ``tolerance``: of ‖result - exact‖ / ‖exact‖, the exact one computed by the first peer in
    float64.
    """

    key: str
    title: str
    inputs: Callable[[str], tuple[Tensor, ...]]
    peers: Mapping[str, Function]
    own: Callable[[], Function]
    goal: str
    tolerance: float = 1e-4
    compiles: bool = True  # whether torch.compile is a peer
    passes: Sequence[str] = field(default=(FORWARD, BOTH))
    others: Mapping[str, Callable[[], Function]] = field(default_factory=dict)


# ----------------------------------------------------------------------------------- programs


def part_of(path: Path, name: str) -> str:
    """A program with one of a file's functions: what stands before the first, and that one."""
    head, *functions = path.read_text(encoding="utf-8").split("\n\n\n")
    own = [text for text in functions if text.lstrip().startswith(f"def {name}(")]
    if len(own) != 1:
        raise ValueError(f"{path.name}: found {len(own)} functions '{name}', expected one")
    return f"{head}\n\n\n{own[0]}\n"


@cache
def compiled(path: Path, name: str) -> Function:
    function: Function = getattr(loma.compile(part_of(path, name)), name)
    return function


def spelling(layer: str) -> Callable[[], Function]:
    return partial(compiled, SPELLINGS / f"{layer}.loma", "statements")


def program(name: str) -> Callable[[], Function]:
    return partial(compiled, FOLDER / f"{name}.loma", name)


def running(name: str) -> Callable[[], Function]:
    """One of the running reductions."""
    return partial(compiled, FOLDER / "running.loma", name)


def layer(name: str, *rest: int) -> Callable[[], Function]:
    """A layer of the network, with its last arguments."""

    def make() -> Function:
        function: Function = getattr(layers.module(layers.file_of(name)), name)
        return (lambda *args: function(*args, *rest)) if rest else function

    return make


@cache
def per_pixel() -> Function:
    function: Function = loma.compile(cpu_layers.PER_PIXEL).per_pixel
    return function


# -------------------------------------------------------------------------------------- peers


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, w.shape, w, b, 1e-5)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, list(w.shape), w, 1e-6)


def rms_norm_by_operators(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, 1)


def glu(x: Tensor) -> Tensor:
    return F.glu(x, 1)


def swiglu(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, 1)
    return value * F.silu(gate)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def attention_by_operators(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, 2) @ v


def routing_of(predicted: Tensor) -> Tensor:
    return reference.routing(predicted, 3, 0)


def routing_of_broadcast(predicted: Tensor) -> Tensor:
    """The sums of the routing as products by broadcasting, which a compiler can fuse."""
    logits = predicted.new_zeros(predicted.shape[:3])
    output = predicted.new_zeros(())
    for iteration in range(3):
        coupling = logits.softmax(dim=1)
        output = reference.squash((coupling.unsqueeze(3) * predicted).sum(2))
        if iteration < 2:
            logits = logits + (predicted * output.unsqueeze(2)).sum(3)
    return output


# --------------------------------------------------------------------------------------- rows


def _normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    def make(device: str) -> tuple[Tensor, ...]:
        return tuple(
            torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes
        )

    return make


def _capsules(*shapes: tuple[int, ...]) -> Any:
    """Numbers of the size that a network's have: routing is well conditioned on them."""

    def make(device: str) -> tuple[Tensor, ...]:
        return tuple((0.3 * torch.randn(shape, device=device)).requires_grad_() for shape in shapes)

    return make


def _classes(rows: int, columns: int) -> Any:
    def make(device: str) -> tuple[Tensor, ...]:
        x = torch.randn(rows, columns, device=device).requires_grad_()
        return x, torch.randint(columns, (rows,), device=device)

    return make


def works(quick: bool) -> list[Work]:
    b, i, r, o, k = (2, 3, 5, 4, 2) if quick else (100, 10, 1152, 16, 8)
    n, size = (2, 9) if quick else (64, 224)
    rows, columns = (6, 8) if quick else (4096, 4096)
    heads, length, width = (2, 16, 8) if quick else (16, 4096, 64)
    square, row = (rows, columns), (columns,)
    at_speed = "at most 1.05 times the better peer, 85 % of copy speed"
    heads_of = (heads, length, width)
    of_statements = spelling("attention")
    attending = f"attention, {heads}x{length}x{width}"
    sizes = f"batch {b}, {i}x{r}x{o}"
    return [
        Work(
            "routing", f"digit capsules, {sizes}x{k}, 3 iterations",
            _capsules((i, r, o, k), (b, r, k)),
            {"einsum": routing_einsum, "broadcast": routing_broadcast},
            layer("digit_capsules", 3, 0), "2.4 / 2.5 times max-autotune",
        ),
        Work(
            "routing_alone", f"routing without predictions, {sizes}", _capsules((b, i, r, o)),
            {"einsum": routing_of, "broadcast": routing_of_broadcast},
            layer("routing", 3, 0), "as the row above",
        ),
        Work(
            "convolution", f"high-order convolution, {n}x3x{size}x{size}",
            _normal((n, 3, size, size), (5, 5, n, size, size)),
            {
                "shifted sum": cpu_layers.shifted_sum,
                "product": cpu_layers.windows_product,
            },
            per_pixel, "2 times / 8 times the best peer",
        ),
        Work(
            "squash", f"squash, 1x{rows}x{columns}", _normal((1, rows, columns)),
            {"reference": reference.squash}, layer("squash"), at_speed,
        ),
        Work(
            "capsules", f"squash of short capsules, {rows}x{columns // 8}x8",
            _normal((rows, columns // 8, 8)), {"reference": reference.squash},
            layer("squash"), at_speed,
        ),
        Work(
            "softmax", f"softmax, {rows}x{columns}", _normal(square), {"F.softmax": softmax},
            spelling("softmax"), at_speed,
        ),
        Work(
            "layer_norm", f"layer norm, {rows}x{columns}", _normal(square, row, row),
            {"F.layer_norm": layer_norm}, spelling("layer_norm"), at_speed,
        ),
        Work(
            "rms_norm", f"RMS norm, {rows}x{columns}", _normal(square, row),
            {"F.rms_norm": rms_norm, "operators": rms_norm_by_operators},
            spelling("rms_norm"), at_speed,
        ),
        Work(
            "cross_entropy", f"cross entropy, {rows}x{columns}", _classes(rows, columns),
            {"F.cross_entropy": F.cross_entropy}, program("cross_entropy"), at_speed,
        ),
        Work(
            "glu", f"GLU, {rows}x{columns}", _normal(square), {"F.glu": glu},
            spelling("glu"), at_speed,
        ),
        Work(
            "swiglu", f"SwiGLU, {rows}x{columns}", _normal(square), {"F.silu": swiglu},
            program("swiglu"), at_speed,
        ),
        Work(
            "running", f"running sums, {rows}x{columns // 4}", _normal((rows, columns // 4)),
            {"cumsum": lambda x: x.cumsum(1)}, running("sums"), at_speed,
        ),
        Work(
            "running_long", f"running sums, 1x{rows * columns // 4}",
            _normal((1, rows * columns // 4)), {"cumsum": lambda x: x.cumsum(1)},
            running("sums"), at_speed, tolerance=1e-3,
        ),
        Work(
            "running_columns", f"running sums of columns, {rows}x{columns // 4}",
            _normal((rows, columns // 4)), {"cumsum": lambda x: x.cumsum(0)},
            running("columns"), at_speed,
        ),
        Work(
            "logarithms", f"logarithms of running sums, {rows}x{columns // 4}",
            _normal((rows, columns // 4)), {"logcumsumexp": lambda x: x.logcumsumexp(1)},
            running("logarithms"), at_speed,
        ),
        Work(
            "attention", f"{attending}, float32",
            _normal(heads_of, heads_of, heads_of),
            {"sdpa": attention, "operators": attention_by_operators}, of_statements,
            "-", compiles=False,
        ),
        Work(
            "attention_bf16", f"{attending}, bfloat16",
            _normal(heads_of, heads_of, heads_of, dtype=torch.bfloat16),
            {"sdpa": attention, "operators": attention_by_operators}, of_statements,
            "at most 2 times sdpa", tolerance=2e-2, compiles=False,
        ),
    ]  # fmt: skip
