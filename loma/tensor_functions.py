"""Tensor functions as plain Python functions, through the operators of a loaded module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from loma.functions import described, reduced
from loma.packed_calls import packed, positional, shown

if TYPE_CHECKING:
    from torch import Tensor

    from loma.functions import LomaModule

Record = dict[str, Any]  # of a function; see loma.backends.torch.binding.record


_is_compiling = torch.compiler.is_compiling


class TensorFunction:
    """A tensor function of a compiled program; call it.

    ``operator`` is its operator, ``torch.ops.loma.NAME.OVERLOAD``. Where the runtime can call it
    over lists, it has the attribute ``each``. It is pickled as its name in the program.
    """

    __name__: str
    __self__: LomaModule

    def __init__(
        self, module: LomaModule, entry: Callable[..., Any], traced: Callable[..., Any]
    ) -> None:
        """``entry`` is called, ``traced`` while torch.compile or torch.export looks on."""
        self.__self__ = module
        self._entry = entry
        self._traced = traced

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return self._traced(*args, **kwargs)
        return self._entry(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<loma function {self.__name__}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Record, str]]:
        return reduced(self)

    def __copy__(self) -> TensorFunction:
        return self

    def __deepcopy__(self, memo: object) -> TensorFunction:
        return self


def tensor_function(
    record: Record,
    native: ModuleType,
    structs: Mapping[str, Callable[[], Any]],
    module: LomaModule,
) -> TensorFunction:
    """The function itself; one that libtorch cannot call raises TypeError with the reason.
    ``structs`` are the classes of the module's structs."""
    if record["refusal"]:
        refusing = _refusing(record)
        return _described(TensorFunction(module, refusing, refusing), shown(record), native)
    operator = operator_of(native, record["operator"])
    plain = _traced(record, operator)
    traced = _completed(record, plain)
    entry = _completed(record, _entry(record, native, plain))
    members = {}
    if "packed" in record:
        # The runtime is called in both cases where torch does not look on.
        flat = TensorFunction(module, entry, traced)
        entry = traced = packed(record, flat, structs)
        members = entry.__dict__
    function = TensorFunction(module, entry, traced)
    function.__dict__.update(members, operator=operator)
    if (each := native.each(record["operator"])) is not None:
        function.each = _completed(record, each)  # type: ignore[attr-defined]
    return _described(function, shown(record), native)


def _described(function: TensorFunction, record: Record, native: ModuleType) -> TensorFunction:
    described(function, record, native.__name__)
    return function


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


def _entry(record: Record, native: ModuleType, traced: Callable[..., Any]) -> Callable[..., Any]:
    """The call that goes straight to C++, which checks it; ``traced`` takes over for subclasses of
    tensors and under modes."""
    entry: Callable[..., Any] = native.entry(record["operator"], traced)
    return entry


def operator_of(native: ModuleType, name: str) -> Any:
    """The operator of a loaded module: ``torch.ops.loma.NAME.OVERLOAD``."""
    return getattr(getattr(torch.ops.loma, name), native.overload(name))


def _traced(record: Record, operator: Callable[..., Any]) -> Callable[..., Any]:
    """The call through torch.ops, in Python that Dynamo can trace."""
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
