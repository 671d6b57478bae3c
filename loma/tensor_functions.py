"""Tensor functions as plain Python functions, through the operators of a loaded module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from loma.functions import described
from loma.packed_calls import packed, positional, shown

if TYPE_CHECKING:
    from torch import Tensor

Record = dict[str, Any]  # of a function; see loma.backends.torch.binding.record


def tensor_function(
    record: Record, native: ModuleType, structs: Mapping[str, Callable[[], Any]]
) -> Callable[..., Any]:
    """The function itself; one that libtorch cannot call raises TypeError with the reason.
    ``structs`` are the classes of the module's structs.

    Where the runtime can call it over lists, it has the attribute ``each``.
    """
    call = _refusing(record) if record["refusal"] else _calling(record, native)
    call = _completed(record, call)
    if not record["refusal"] and (each := native.each(record["operator"])) is not None:
        call.each = _completed(record, each)  # type: ignore[attr-defined]
    if "packed" in record:
        call = packed(record, call, structs)
        record = shown(record)
    return described(call, record, native.__name__)


def _completed(record: Record, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call with default values for what is left out."""
    defaults = {
        param["name"]: (at, param["default"])
        for at, param in enumerate(record["params"])
        if "default" in param
    }
    if not defaults:
        return call

    def complete(*args: Any, **kwargs: Any) -> Any:
        for name, (at, value) in defaults.items():
            if at >= len(args):
                kwargs.setdefault(name, value)
        return call(*args, **kwargs)

    return complete


def _refusing(record: Record) -> Callable[..., Any]:
    def call(*args: object, **kwargs: object) -> None:
        raise TypeError(
            f"{record['name']} cannot be called from Python through libtorch: it "
            f"{record['refusal']}; tensor functions of the module can call it"
        )

    return call


def _calling(record: Record, native: ModuleType) -> Callable[..., Any]:
    """Outside torch.compile and torch.export a call goes straight to C++, which checks it."""
    traced = _traced(record, native.__name__)
    entry = native.entry(record["operator"], traced)
    is_compiling = torch.compiler.is_compiling

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return traced(*args, **kwargs)
        return entry(*args, **kwargs)

    return call


def _traced(record: Record, namespace: str) -> Callable[..., Any]:
    """The call through torch.ops, in Python that Dynamo can trace."""
    operator = getattr(getattr(torch.ops, namespace), record["operator"]).default
    params = record["params"]
    names = [param["name"] for param in params]
    floats = [at for at, param in enumerate(params) if param["kind"] == "Float"]
    tensors = [at for at, param in enumerate(params) if param["kind"] in ("Tensor", "Tensor32")]
    outs = [at for at, param in enumerate(params) if param["mode"] == "Out"]
    function, results, as_tuple = record["name"], record["results"], record["adjoints"]
    single = any(param["kind"] == "Tensor32" for param in params)

    def call(*args: Any, **kwargs: Any) -> Any:
        values = positional(function, names, args, kwargs)
        for at in floats:
            values[at] = _as_tensor(values[at], values, tensors or floats, single)
        given = operator(*values)
        given = (given,) if results + (0 if as_tuple else len(outs)) == 1 else tuple(given or ())
        for at, value in zip(outs, given[results:], strict=True):
            values[at].copy_(value)
        given = given[:results]
        if as_tuple or results > 1:
            return given
        return given[0] if results else None

    return call


def _device(values: Sequence[Any]) -> str:
    """The kind of device of a call: device_of_call of the runtime."""
    kinds = [value.device.type for value in values if isinstance(value, torch.Tensor)]
    return "cuda" if "cuda" in kinds else "cpu"


def _as_tensor(value: Any, values: Sequence[Any], sources: Sequence[int], single: bool) -> Tensor:
    """A float argument as a 0-dim tensor of the call's dtype: dtype_of_numbers of the runtime.

    ``single``: the function takes no other tensors than float32.
    """
    dtypes = [values[at].dtype for at in sources if isinstance(values[at], torch.Tensor)]
    dtype = dtypes[0] if dtypes else torch.get_default_dtype()
    if single:
        dtype = torch.float32
    elif torch.is_autocast_enabled(_device(values)):
        dtype = functools.reduce(torch.promote_types, dtypes, dtype)
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.full((), value, dtype=dtype)
