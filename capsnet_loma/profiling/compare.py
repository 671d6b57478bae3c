"""``capsnet-loma compare``: loma's values and gradients against autograd of the reference.

Each function is called three ways: the reference under autograd, loma under autograd, and, for the
gradients, loma's explicit derivative ``d_f``. The adjoint of the result is random, and the same
for all.

The relative error of a tensor is ``max |loma - reference| / max(max |reference|, floor)``: one
scale for a whole tensor, since single elements may cancel to zero. The floor is the smallest
normal number of the dtype times 1e10, so that a tensor that is zero throughout has to be met
to that accuracy.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import loma
from capsnet_loma import reference
from capsnet_loma.layers import FUNCTIONS, file_of, module
from capsnet_loma.profiling.cases import (
    Argument, FunctionCase, NetworkCase, function_cases, network_cases,
)  # fmt: skip

How = Literal["autograd", "d_f"]
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
ALL = (*FUNCTIONS, "network")
SEED = 2017


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor of one case: its largest errors, and whether they are within the tolerance."""

    function: str
    point: str
    dtype: str
    how: How
    what: str
    max_absolute: float
    max_relative: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.max_relative <= self.tolerance  # False for NaN


@dataclass(frozen=True, slots=True)
class Report:
    comparisons: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        return all(comparison.ok for comparison in self.comparisons)

    def summary(self) -> list[Comparison]:
        """The worst comparison of each function, dtype and way, in order of first appearance."""
        worst: dict[tuple[str, str, str], Comparison] = {}
        for item in self.comparisons:
            key = (item.function, item.dtype, item.how)
            if key not in worst or _badness(item) > _badness(worst[key]):
                worst[key] = item
        return list(worst.values())

    def failures(self) -> list[Comparison]:
        return [comparison for comparison in self.comparisons if not comparison.ok]

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "comparisons": [
                {k: _json_number(v) for k, v in asdict(item).items()} | {"ok": item.ok}
                for item in self.comparisons
            ],
        }


def _json_number(value: Any) -> Any:
    """JSON has no NaN and no infinity: those become the strings "nan" and "inf"."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _badness(item: Comparison) -> float:
    return float("inf") if item.max_relative != item.max_relative else item.max_relative


def relative_error(value: Tensor, expected: Tensor) -> tuple[float, float]:
    """(largest absolute error, relative error as the module's text defines it).

    NaN or infinity in one but not in the other gives NaN or infinity; a different shape is
    infinitely wrong.
    """
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return float("inf"), float("inf")
    if value.numel() == 0:
        return 0.0, 0.0
    absolute = (value.double() - expected.double()).abs().max().item()
    floor = torch.finfo(expected.dtype).tiny * 1e10
    return absolute, absolute / max(expected.double().abs().max().item(), floor)


def compare(
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    names: Sequence[str] = ALL,
    device: str = "cpu",
) -> Report:
    """Runs the comparison of these functions, of which "network" is one, on a device.

    ``progress(what, done, total)`` is called before each case.
    """
    every: list[FunctionCase | NetworkCase] = [*function_cases(), *network_cases()]
    cases = [case for case in every if case.function in names]
    found: list[Comparison] = []
    with _all_digits():
        for done, (case, dtype) in enumerate((c, d) for c in cases for d in dtypes):
            progress(f"{case.function}: {case.point}", done, len(cases) * len(dtypes))
            if isinstance(case, FunctionCase):
                found += _compare_function(case, dtype, device)
            else:
                found += _compare_network(case, dtype, device)
        loma.check_device()
    return Report(tuple(found))


@contextlib.contextmanager
def _all_digits() -> Iterator[None]:
    """GPUs may otherwise round float32 to the ten bits of TF32 in convolutions and products."""
    libraries: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    allowed = [library.allow_tf32 for library in libraries]
    try:
        for library in libraries:
            library.allow_tf32 = False
        yield
    finally:
        for library, before in zip(libraries, allowed, strict=True):
            library.allow_tf32 = before


# ------------------------------------------------------------------------------------- functions


def _compare_function(case: FunctionCase, dtype: torch.dtype, device: str) -> Iterator[Comparison]:
    generator = torch.Generator().manual_seed(SEED)  # the same numbers on all devices
    arguments = _cast(case.make(generator), dtype, device)
    names = _parameter_names(case.function)
    loma_module = module(file_of(case.function))

    expected, leaves = _call(getattr(reference, case.function), arguments)
    adjoint = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    adjoint = adjoint.to(device, dtype)
    expected_gradients = torch.autograd.grad(expected, leaves, adjoint)

    value, own_leaves = _call(getattr(loma_module, case.function), arguments)
    gradients = torch.autograd.grad(value, own_leaves, adjoint)
    record = _recorder(case.function, case.point, dtype)
    yield record("autograd", "value", value, expected)
    for name, gradient, wanted in zip(names, gradients, expected_gradients, strict=True):
        yield record("autograd", f"d {name}", gradient, wanted)

    explicit = getattr(loma_module, f"d_{case.function}")(*arguments, adjoint)
    every = explicit if isinstance(explicit, tuple) else (explicit,)
    pairs = zip(every, arguments, strict=True)
    adjoints = [found for found, argument in pairs if isinstance(argument, Tensor)]
    for name, gradient, wanted in zip(names, adjoints, expected_gradients, strict=True):
        yield record("d_f", f"d {name}", gradient, wanted)


def _cast(arguments: tuple[Argument, ...], dtype: torch.dtype, device: str) -> tuple[Argument, ...]:
    return tuple(a.to(device, dtype) if isinstance(a, Tensor) else a for a in arguments)


def _call(
    function: Callable[..., Tensor], arguments: tuple[Argument, ...]
) -> tuple[Tensor, list[Tensor]]:
    """The value, and the tensor arguments as leaves of the graph."""
    copies = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in arguments]
    return function(*copies), [a for a in copies if isinstance(a, Tensor)]


def _parameter_names(function: str) -> list[str]:
    """Names of the tensor arguments, as the reference has them."""
    signature = inspect.signature(getattr(reference, function))
    return [p.name for p in signature.parameters.values() if p.annotation in ("Tensor", Tensor)]


Recorder = Callable[[How, str, Tensor, Tensor], Comparison]


def _recorder(function: str, point: str, dtype: torch.dtype) -> Recorder:
    def record(how: How, what: str, value: Tensor, expected: Tensor) -> Comparison:
        absolute, relative = relative_error(value.detach(), expected.detach())
        name = str(dtype).removeprefix("torch.")
        return Comparison(function, point, name, how, what, absolute, relative, TOLERANCES[dtype])

    return record


# --------------------------------------------------------------------------------------- network


def _compare_network(case: NetworkCase, dtype: torch.dtype, device: str) -> Iterator[Comparison]:
    from capsnet_loma import network

    torch.manual_seed(SEED)
    theirs = reference.CapsNet(case.config).to(device, dtype)
    mine = network.CapsNet(case.config).to(device, dtype)
    with torch.no_grad():
        theirs.digit_weight.mul_(case.weight_scale)
    mine.load_state_dict(theirs.state_dict())
    images, targets = (tensor.to(device) for tensor in _batch(case, dtype))

    expected = _run(theirs, reference.capsule_loss, images, targets, case.decode_longest)
    values = _run(mine, network.capsule_loss, images, targets, case.decode_longest)
    record = _recorder(case.function, case.point, dtype)
    for what, wanted in expected.items():
        yield record("autograd", what, values[what], wanted)


def _batch(case: NetworkCase, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    c = case.config
    generator = torch.Generator().manual_seed(SEED)
    shape = (case.batch, c.image_channels, c.image_size, c.image_size)
    images = torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(c.classes, (case.batch,), generator=generator)
    targets = torch.nn.functional.one_hot(labels, c.classes).to(dtype)
    return (torch.zeros_like(images) if case.zero_images else images), targets


def _run(
    net: torch.nn.Module,
    loss_function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    images: Tensor,
    targets: Tensor,
    decode_longest: bool,
) -> dict[str, Tensor]:
    """Outputs, loss, and the gradient of the loss with respect to images and parameters."""
    images = images.clone().requires_grad_()
    capsules, reconstruction = net(images, None if decode_longest else targets)
    loss = loss_function(images, targets, capsules, reconstruction)
    parameters = dict(net.named_parameters())
    gradients = torch.autograd.grad(loss, [images, *parameters.values()])
    found = {"capsules": capsules, "reconstruction": reconstruction, "loss": loss}
    for name, gradient in zip(["images", *parameters], gradients, strict=True):
        found[f"d {name}"] = gradient
    return found
