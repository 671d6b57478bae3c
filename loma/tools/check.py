"""Gradient checking: a function's autograd against central differences in float64.

Two tests, both on the scalar L = sum of <w_k, y_k> over the outputs y_k with fixed random w_k, so
that a wrong entry of any Jacobian shows in it:

* element by element, dL/dx_i against (L(x + h e_i) - L(x - h e_i)) / 2h;
* the dot-product test along one random direction v over all arguments at once,
  <J v, w> = <v, J^T w>, which reaches also the elements that were left out of the first.

Differences are no derivative at a kink (``relu`` at 0, a tie of ``max``): choose arguments off it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loma.packed_calls import flat
from loma.reports import public


class GradientError(AssertionError):
    """A gradient is wrong; ``report`` has the numbers."""

    def __init__(self, report: GradientReport) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True, slots=True)
class ArgumentReport:
    """How far one argument's gradient is off.

    ``rel_error`` is ``abs_error`` over the largest difference quotient of the argument, never less
    than 1e-3. ``worst`` is the element with the largest error, ``found`` its gradient and
    ``expected`` its difference quotient.
    """

    name: str
    shape: tuple[int, ...]
    checked: int
    abs_error: float
    rel_error: float
    worst: tuple[int, ...]
    found: float
    expected: float
    ok: bool

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.worst))}]" if self.worst else ""
        total = math.prod(self.shape)
        some = (
            f"{self.checked} of {total} elements" if self.checked < total else f"{total} elements"
        )
        return (
            f"{'ok  ' if self.ok else 'FAIL'} {self.name}: {some}, "
            f"max abs error {self.abs_error:.2e}, rel {self.rel_error:.2e}; "
            f"worst {self.name}{place}: gradient {self.found:.9g}, "
            f"differences {self.expected:.9g}"
        )


@dataclass(frozen=True, slots=True)
class GradientReport:
    """``dot_error`` is the relative error of the dot-product test, over all arguments at once."""

    function: str
    arguments: tuple[ArgumentReport, ...]
    dot_error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return all(argument.ok for argument in self.arguments) and self.dot_ok

    @property
    def dot_ok(self) -> bool:
        return self.dot_error <= self.tolerance

    def __str__(self) -> str:
        wrong = [argument.name for argument in self.arguments if not argument.ok]
        if self.ok:
            head = "gradients agree with central differences"
        elif wrong:
            head = f"wrong gradient of {', '.join(wrong)}"
        else:
            head = "wrong gradient outside the checked elements"
        lines = [f"{self.function}: {head} (relative tolerance {self.tolerance:g})"]
        lines += [f"  {argument}" for argument in self.arguments]
        dot = "ok  " if self.dot_ok else "FAIL"
        lines.append(f"  {dot} dot-product test: relative error {self.dot_error:.2e}")
        return "\n".join(lines)


@public
def check_gradients(
    function: Callable[..., object],
    args: Sequence[object] | Mapping[str, object],
    *,
    tolerance: float = 1e-6,
    step: float = 1e-5,
    max_elements: int = 200,
    seed: int = 0,
    raise_on_error: bool = True,
) -> GradientReport:
    """Checks the gradients of ``function`` at ``args``, by position or by name.

    Float tensors and Python floats are checked, in float64 whatever they come as; ints and integer
    tensors are passed on. An argument that the function writes to counts as an output too. The
    arguments themselves are never changed. Of an argument with more than ``max_elements`` elements
    that many are drawn at random (from ``seed``).

    Raises GradientError, which names the argument and its worst element, when a relative error is
    beyond ``tolerance``, unless ``raise_on_error`` is false; ValueError when there is nothing to
    check.
    """
    point = _Point(function, args)
    generator = torch.Generator().manual_seed(seed)
    leaves = {key: leaf.clone().requires_grad_() for key, leaf in point.leaves.items()}
    outputs = point.outputs(leaves)
    weights = [_randn_like(output, generator) for output in outputs]
    gradients = _gradients(outputs, weights, leaves)

    reports = tuple(
        _check_argument(
            point, key, gradients[key], weights, tolerance, step, max_elements, generator
        )
        for key in leaves
    )
    directions = {key: _randn_like(leaf, generator) for key, leaf in point.leaves.items()}
    along = _difference(point, directions, weights, step)
    back = sum((float((directions[k] * gradients[k]).sum()) for k in leaves), 0.0)
    norms = [float(torch.linalg.vector_norm(gradients[k])) for k in leaves]
    scale = max(abs(along), abs(back), *norms, 1e-3)
    dot_error = _finite(abs(along - back) / scale)

    report = GradientReport(point.name, reports, dot_error, tolerance)
    if raise_on_error and not report.ok:
        raise GradientError(report)
    return report


class _Point:
    """The function and where it is checked: the arguments, with the float ones as ``leaves``."""

    def __init__(
        self, function: Callable[..., object], args: Sequence[object] | Mapping[str, object]
    ) -> None:
        self.name = str(getattr(function, "__name__", "function"))
        members = getattr(function, "members", None)
        if members is not None and flat(function) is not function:  # structs: each member is one
            args = members(**args) if isinstance(args, Mapping) else members(*args)
            function = flat(function)
        self.function = function
        self.by_name = isinstance(args, Mapping)
        items = args.items() if isinstance(args, Mapping) else enumerate(args)
        self.args: dict[str | int, object] = dict(items)
        self.leaves = {
            key: leaf for key, value in self.args.items() if (leaf := _leaf(value)) is not None
        }
        if not any(leaf.numel() for leaf in self.leaves.values()):
            raise ValueError(f"{self.name}: no float argument to check the gradient of")

    def label(self, key: str | int) -> str:
        """The argument's name as the function declares it."""
        if isinstance(key, str):
            return key
        try:
            names = list(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):
            names = []
        return names[key] if key < len(names) else f"argument {key}"

    def outputs(self, leaves: Mapping[str | int, Tensor]) -> list[Tensor]:
        """The float tensors that come back, then the arguments that the call wrote to."""
        # A copy that is no leaf: the function may write to it, whether or not grad is on.
        given = {key: leaves.get(key, value) for key, value in self.args.items()}
        passed = {k: v.clone() if isinstance(v, Tensor) else v for k, v in given.items()}
        versions = [(v, v._version) for v in passed.values() if isinstance(v, Tensor)]
        if self.by_name:
            result = self.function(**{str(key): value for key, value in passed.items()})
        else:
            result = self.function(*passed.values())
        values = list(result) if isinstance(result, tuple | list) else [result]
        values += [tensor for tensor, before in versions if tensor._version != before]
        floats = [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]
        if not floats:
            raise ValueError(f"{self.name}: no float tensor comes back, so there is no gradient")
        return floats


def _leaf(value: object) -> Tensor | None:
    """The float64 tensor that stands for a float argument; None for any other."""
    if isinstance(value, Tensor):
        return value.detach().to(torch.float64).clone() if value.is_floating_point() else None
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else None


def _randn_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return noise.to(tensor.device)


def _gradients(
    outputs: list[Tensor], weights: list[Tensor], leaves: Mapping[str | int, Tensor]
) -> dict[str | int, Tensor]:
    """J^T w for every leaf, zero where no output depends on it."""
    pairs = [(y, w.to(y.dtype)) for y, w in zip(outputs, weights, strict=True) if y.requires_grad]
    if not pairs:
        return {key: torch.zeros_like(leaf) for key, leaf in leaves.items()}
    found = torch.autograd.grad(
        [y for y, _ in pairs], list(leaves.values()), [w for _, w in pairs], materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def _difference(
    point: _Point, directions: Mapping[str | int, Tensor], weights: list[Tensor], step: float
) -> float:
    """(L(x + h d) - L(x - h d)) / 2h, the outputs subtracted before they are summed up."""
    with torch.no_grad():
        ahead = point.outputs(_moved(point.leaves, directions, step))
        behind = point.outputs(_moved(point.leaves, directions, -step))
        terms = zip(weights, ahead, behind, strict=True)
        total = math.fsum(float(torch.sum(w * (a - b))) for w, a, b in terms)
    return total / (2.0 * step)


def _moved(
    leaves: Mapping[str | int, Tensor], directions: Mapping[str | int, Tensor], distance: float
) -> dict[str | int, Tensor]:
    return {
        key: leaf + distance * directions[key] if key in directions else leaf
        for key, leaf in leaves.items()
    }


def _check_argument(
    point: _Point,
    key: str | int,
    gradient: Tensor,
    weights: list[Tensor],
    tolerance: float,
    step: float,
    max_elements: int,
    generator: torch.Generator,
) -> ArgumentReport:
    leaf = point.leaves[key]
    chosen = torch.randperm(leaf.numel(), generator=generator)[:max_elements].sort().values.tolist()
    found = [float(gradient.reshape(-1)[i]) for i in chosen]
    expected = []
    for i in chosen:
        direction = torch.zeros(leaf.numel(), dtype=torch.float64, device=leaf.device)
        # A step in proportion, so that large values do not swallow it.
        scale = max(1.0, abs(float(leaf.reshape(-1)[i])))
        direction[i] = scale
        moved = {key: direction.reshape(leaf.shape)}
        expected.append(_difference(point, moved, weights, step) / scale)

    errors = [_finite(abs(f - e)) for f, e in zip(found, expected, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__, default=None)
    if worst is None:
        label, shape = point.label(key), tuple(leaf.shape)
        return ArgumentReport(label, shape, 0, 0.0, 0.0, (), 0.0, 0.0, True)
    rel_error = _finite(errors[worst] / max(*map(abs, expected), 1e-3))
    place = torch.unravel_index(torch.tensor(chosen[worst]), leaf.shape)
    return ArgumentReport(
        name=point.label(key),
        shape=tuple(leaf.shape),
        checked=len(chosen),
        abs_error=errors[worst],
        rel_error=rel_error,
        worst=tuple(int(i) for i in place),
        found=found[worst],
        expected=expected[worst],
        ok=rel_error <= tolerance,
    )


def _finite(error: float) -> float:
    """NaN compares as no error at all, so it becomes the largest one."""
    return math.inf if math.isnan(error) else error
