"""Layers from programs: ``layer = loma.nn.Module("linear.loma", w=(8, 4), b=(8,))``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, init

from loma import compiler
from loma.errors import suggest
from loma.functions import LomaModule
from loma.reports import public

Shape = int | Sequence[int] | Tensor


class Module(torch.nn.Module):
    """A layer whose forward pass is a tensor function of a program.

    The arguments of the function that are named here are the layer's parameters; a call of the
    layer takes the others, in their order or by name, and gives what the function gives.
    """

    @public
    def __init__(
        self,
        program: str | Path | LomaModule,
        function: str | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **parameters: Shape,
    ) -> None:
        """``program`` is what :func:`loma.compile` takes, or what it gave. ``function``: by default
        the one named as the file, or the only one. ``parameters``: the shape of each, or a tensor
        to begin with. Raises TypeError for what the function has no argument for, ValueError where
        it is not said which function is meant."""
        super().__init__()
        found = program if isinstance(program, LomaModule) else compiler.compile(program)
        record = _record(found, function)
        self.function = getattr(found, record["name"])
        names = [param["name"] for param in record["params"]]
        for name in parameters:
            if name not in names:
                hint = suggest(name, names) or f"its arguments are {', '.join(names)}"
                raise TypeError(f"{record['name']}() has no argument '{name}': {hint}")
        self._inputs = tuple(name for name in names if name not in parameters)
        for name in (name for name in names if name in parameters):
            given = parameters[name]
            if isinstance(given, Tensor):
                value = given.detach().to(device=device, dtype=dtype, copy=True)
            else:
                shape = (given,) if isinstance(given, int) else tuple(given)
                value = torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, Parameter(value))
        self._given = frozenset(n for n, value in parameters.items() if isinstance(value, Tensor))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New values for what is given by its shape, as torch's layers begin with. What has two
        dimensions or more is uniform within 1 / sqrt(fan_in) of zero, as the weight of
        torch.nn.Linear (outputs first) and of convolutions; so is what has fewer and stands behind
        such a weight, as their bias. Without a weight in front of it, what has "weight" in its name
        is one and the rest zero, as in torch.nn.LayerNorm."""
        bound: float | None = None
        for name, value in self.named_parameters(recurse=False):
            if value.dim() >= 2:
                fan_in = value[0].numel()
                bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
            if name in self._given:
                continue
            if bound is not None:
                init.uniform_(value, -bound, bound)
            else:
                init.constant_(value, 1.0 if "weight" in name else 0.0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(self._inputs):
            listed = ", ".join(self._inputs) or "nothing"
            raise TypeError(f"this layer takes {listed} beside its parameters, got {len(args)}")
        own = {name: getattr(self, name) for name in self._parameters}
        return self.function(**dict(zip(self._inputs, args, strict=False)), **own, **kwargs)

    def extra_repr(self) -> str:
        shapes = [
            f"{name}={tuple(value.shape)}"
            for name, value in self._parameters.items()
            if value is not None
        ]
        return ", ".join([self.function.__name__, *shapes])


def _record(module: LomaModule, function: str | None) -> dict[str, Any]:
    record = module.__record__
    known = {item["name"]: item for item in record["functions"] if item["layer"] == "tensor"}
    if function is None:
        first = {name: item for name, item in known.items() if not item["adjoints"]}
        function = next(iter(first)) if len(first) == 1 else record["name"]
        if function not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(
                f"say which tensor function of '{record['name']}' the layer runs: it has {listed}"
            )
    elif function not in known:
        hint = suggest(function, list(known)) or f"it has {', '.join(known) or 'none'}"
        raise ValueError(f"'{record['name']}' has no tensor function '{function}': {hint}")
    return known[function]
