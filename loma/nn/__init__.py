"""Layers from programs: ``layer = loma.nn.Module("linear.loma", w=(8, 4), b=8)``."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, init

from loma import compiler
from loma.core.ir import Function
from loma.errors import suggest
from loma.functions import LomaModule, restored_layer
from loma.packed_calls import shown
from loma.reports import public
from loma.tensor_functions import TensorFunction
from loma.tools.samples import check_shapes

Shape = int | Sequence[int]
Record = dict[str, Any]  # of a function's argument; see loma.backends.torch.binding.record

_KEYWORDS = {"function": str, "device": torch.device | str | int, "dtype": torch.dtype}


class Module(torch.nn.Module):
    """A layer whose forward pass is a tensor function of a program, ``function``.

    The tensors among the arguments of the function that are named here are the layer's parameters,
    numbers that are named stay as they are; a call of the layer takes the other arguments, in their
    order or by name, and gives what the function gives.
    """

    @public
    def __init__(
        self,
        program: str | Path | LomaModule | TensorFunction,
        /,
        function: str | None = None,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **arguments: Shape | Tensor | float,
    ) -> None:
        """``program`` is what :func:`loma.compile` takes, or what it gave, or a tensor function of
        that. ``function``: by default the one named as the file, or the only one. ``arguments``, by
        their names:

        * A tensor's shape, or a tensor to begin with, which is copied unless it is a Parameter:
          a parameter. An IntTensor or BoolTensor is a buffer, and given as a tensor.
        * A number for a float or an int: it is passed in each call. A float with the shape ``()``
          is a parameter, too.

        Raises TypeError and ValueError for what the function has no argument for, for what cannot
        be an argument of a layer, and for shapes that the types do not allow."""
        super().__init__()
        for name, given in {"function": function, "device": device, "dtype": dtype}.items():
            if given is not None and not isinstance(given, _KEYWORDS[name]):
                raise TypeError(
                    f"'{name}' of a layer is no argument of its function, got {given!r}: rename an "
                    "argument of that name in the program"
                )
        if isinstance(program, TensorFunction):
            if function not in (None, program.__name__):
                raise ValueError(f"give one function, got {program!r} and '{function}'")
            program, function = program.__self__, program.__name__
        found = program if isinstance(program, LomaModule) else compiler.compile(program)
        record = _record(found, function)
        title = record["name"]
        self.function = getattr(found, title)
        params: dict[str, Record] = {param["name"]: param for param in shown(record)["params"]}
        for name in arguments:
            if name not in params:
                hint = suggest(name, list(params)) or f"its arguments are {', '.join(params)}"
                raise TypeError(f"{title}() has no argument '{name}': {hint}")
        self._own = tuple(name for name in params if name in arguments)
        self._inputs = tuple(name for name in params if name not in arguments)
        self._given = tuple(name for name in self._own if isinstance(arguments[name], Tensor))
        self._defaults = {n: params[n]["default"] for n in self._own if "default" in params[n]}
        for name in self._own:
            if hasattr(self, name):
                raise TypeError(
                    f"{title}: '{name}' is an attribute of every layer, so it cannot be an "
                    "argument of its own: rename it in the program, or pass it in each call"
                )
            value = _own_value(title, params[name], arguments[name], device, dtype)
            if isinstance(value, Tensor) and not isinstance(value, Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self._check_shapes(found.__program__.stage().module.function(title))
        self.reset_parameters()

    def _check_shapes(self, function: Function) -> None:
        own = {name: getattr(self, name) for name in self._own}
        check_shapes(
            function,
            {name: tuple(value.shape) for name, value in own.items() if isinstance(value, Tensor)},
            {name: value for name, value in own.items() if not isinstance(value, Tensor)},
        )

    def reset_parameters(self) -> None:
        """New values for what is given by its shape, as torch's layers begin with. What has two
        dimensions or more is uniform within 1 / sqrt(fan_in) of zero, as the weight of
        torch.nn.Linear (outputs first) and of convolutions; so is what has fewer and stands behind
        such a weight, as their bias. Without a weight in front of it, what has "weight" in its name
        is one and the rest zero, as in torch.nn.LayerNorm. A float begins with the function's
        default."""
        bound: float | None = None
        for name, value in self.named_parameters(recurse=False):
            if value.dim() >= 2:
                fan_in = value[0].numel() if len(value) else 0
                bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
            if name in self._given:
                continue
            if name in self._defaults:
                init.constant_(value, self._defaults[name])
            elif bound is not None:
                init.uniform_(value, -bound, bound)
            else:
                init.constant_(value, 1.0 if "weight" in name else 0.0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(self._inputs):
            listed = ", ".join(self._inputs) or "nothing"
            raise TypeError(f"this layer takes {listed} beside its own, got {len(args)} arguments")
        for name in kwargs:
            if name in self._own:
                raise TypeError(f"this layer has '{name}' itself, a call cannot pass it")
        own = {name: getattr(self, name) for name in self._own}
        # as many of each, which torch.compile of torch 2.6 insists on
        passed = dict(zip(self._inputs[: len(args)], args, strict=True))
        return self.function(**passed, **own, **kwargs)

    def extra_repr(self) -> str:
        own = {name: getattr(self, name) for name in self._own}
        shown = [f"{n}={tuple(v.shape) if isinstance(v, Tensor) else v}" for n, v in own.items()]
        return ", ".join([self.function.__name__, *shown])

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is not Module:
            return super().__reduce_ex__(protocol)
        # What torch.load allows: see loma._TorchFinder.
        return restored_layer, (), object.__getstate__(self)


torch.serialization.add_safe_globals([Module])


def _own_value(
    title: str,
    param: Record,
    given: Any,
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
) -> Parameter | Tensor | float:
    """What a layer keeps of what it was given: a Parameter, a buffer, or a number. TypeError where
    it cannot be one of these."""
    what = f"{title}: argument '{param['name']}' is {param['mode']}[{param['type']}]"
    if param["mode"] == "Out" or param.get("struct"):
        why = "which is written" if param["mode"] == "Out" else "a struct"
        raise TypeError(f"{what}, {why}, so a layer cannot have it: pass it in each call")
    kind = param["kind"]
    if isinstance(given, Tensor) and kind != "Int":
        of, fits = _ELEMENTS[kind]
        if not fits(given.dtype):
            raise TypeError(f"{what}: give a tensor of {of}, got one of {given.dtype}")
        if isinstance(given, Parameter):
            return given
        if kind in ("IntTensor", "BoolTensor"):
            return given.detach().to(device=device, copy=True)
        return Parameter(given.detach().to(device=device, dtype=dtype, copy=True))
    if kind == "Int" and _is_a(numbers.Integral, given):
        return int(given)
    if kind == "Float" and _is_a(numbers.Real, given):
        return float(given)
    shape = (given,) if _is_a(numbers.Integral, given) else given
    is_shape = isinstance(shape, list | tuple) and all(
        _is_a(numbers.Integral, size) and size >= 0 for size in shape
    )
    if is_shape and (kind in ("Tensor", "Tensor32") or (kind == "Float" and not shape)):
        return Parameter(torch.empty(tuple(map(int, shape)), device=device, dtype=dtype))
    raise TypeError(f"{what}: give {_WANTED[kind]}, got {given!r}")


def _is_a(kind: type, given: object) -> bool:
    return isinstance(given, kind) and not isinstance(given, bool)


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


# Of tensors that are given for a kind of argument.
_ELEMENTS: dict[str, tuple[str, Callable[[torch.dtype], bool]]] = {
    "Tensor": ("floats", _is_floating),
    "Tensor32": ("floats", _is_floating),
    "Float": ("floats", _is_floating),
    "IntTensor": ("ints", lambda dtype: not dtype.is_floating_point and not dtype.is_complex),
    "BoolTensor": ("bools", lambda dtype: dtype == torch.bool),
}
_WANTED = {
    "Tensor": "a shape, or a tensor to begin with",
    "Tensor32": "a shape, or a tensor to begin with",
    "Float": "a number, which stays, or () for a parameter",
    "Int": "an int, which stays",
    "IntTensor": "its values, a tensor of ints",
    "BoolTensor": "its values, a tensor of bools",
}


def _record(module: LomaModule, function: str | None) -> Record:
    record = module.__record__
    known: dict[str, Record] = {
        item["name"]: item for item in record["functions"] if item["layer"] == "tensor"
    }
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
