"""What a program calls: the loaded module, and its functions as plain Python functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from loma.errors import suggest

if TYPE_CHECKING:
    from torch import Tensor

Record = dict[str, Any]  # of a function; see loma.backends.libtorch.binding.record


class LomaModule:
    """A compiled program. Its tensor functions are attributes: ``module.f(x)``.

    ``__name__`` is the namespace of its operators in ``torch.ops``, ``__source__`` the program's
    text, ``__folder__`` the folder in the cache with the C++ files that it was compiled from.
    """

    def __init__(
        self, source: str, path: str, metadata: Record, native: ModuleType, folder: Path
    ) -> None:
        self.__name__ = native.__name__
        self.__source__ = source
        self.__file__ = path
        self.__folder__ = folder
        self._title = metadata["name"]
        self._functions = {record["name"]: record for record in metadata["functions"]}
        for name, record in self._functions.items():
            self.__dict__[name] = _function(record, native)

    def show(self, stage: str = "parsed", function: str | None = None) -> str:
        """The program, or one function, as text after a stage: see :mod:`loma.pipeline`."""
        from loma import pipeline

        return pipeline.stage_text(self.__source__, stage, function, self.__file__)

    def __getattr__(self, name: str) -> Any:
        functions = self.__dict__.get("_functions", {})
        hint = suggest(name, functions) or f"its functions are {', '.join(functions) or 'none'}"
        title = self.__dict__.get("_title", "module")
        raise AttributeError(f"loma module '{title}' has no function '{name}': {hint}")

    def __dir__(self) -> list[str]:
        return sorted({*self._functions, "show"})

    def __repr__(self) -> str:
        return f"<loma module '{self._title}' from {self.__file__}: {', '.join(self._functions)}>"

    def __reduce__(self) -> tuple[Callable[..., LomaModule], tuple[str, str, str]]:
        return _reload, (self.__source__, self.__file__, self._title)


def _reload(source: str, path: str, name: str) -> LomaModule:
    from loma.compiler import Program, load

    return load(Program(source, path, name))


# ------------------------------------------------------------------------------------ functions


def _function(record: Record, native: ModuleType) -> Callable[..., Any]:
    """The function itself; one that this backend cannot call raises TypeError with the reason."""
    call = _refusing(record) if record["refusal"] else _calling(record, native)
    call.__name__ = call.__qualname__ = record["name"]
    call.__module__ = native.__name__
    call.__doc__ = _documentation(record)
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(param["name"], inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for param in record["params"]
        ]
    )
    return call


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

    def call(*args: Any, **kwargs: Any) -> Any:
        values = _positional(function, names, args, kwargs)
        for at in floats:
            values[at] = _as_tensor(values[at], values, tensors or floats)
        given = operator(*values)
        given = (given,) if results + (0 if as_tuple else len(outs)) == 1 else tuple(given or ())
        for at, value in zip(outs, given[results:], strict=True):
            values[at].copy_(value)
        given = given[:results]
        if as_tuple or results > 1:
            return given
        return given[0] if results else None

    return call


def _positional(
    function: str, names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """The arguments in order. TypeError, as the C++ entry raises it."""
    listed = ", ".join(names)
    if len(args) > len(names):
        noun = "argument" if len(names) == 1 else "arguments"
        raise TypeError(f"{function}() takes {len(names)} {noun} ({listed}), got {len(args)}")
    values = list(args)
    for name in kwargs:
        if name not in names:
            raise TypeError(f"{function}() has no argument '{name}'; its arguments are: {listed}")
        if name in names[: len(args)]:
            raise TypeError(f"{function}() got argument '{name}' twice")
    for name in names[len(args) :]:
        if name not in kwargs:
            raise TypeError(f"{function}() misses argument '{name}'; its arguments are: {listed}")
        values.append(kwargs[name])
    return values


def _as_tensor(value: Any, values: Sequence[Any], sources: Sequence[int]) -> Tensor:
    """A float argument as a 0-dim tensor of the call's dtype."""
    dtype = torch.get_default_dtype()
    for at in reversed(sources):
        if isinstance(values[at], torch.Tensor):
            dtype = values[at].dtype
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.full((), value, dtype=dtype)


def _documentation(record: Record) -> str:
    """The function's first line as the program has it, and its docstring."""
    params = ", ".join(
        f"{param['name']} : {param['mode']}[{param['type']}]" for param in record["params"]
    )
    types = record["result_types"]
    result = types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"
    first = f"{record['name']}({params})" + (f" -> {result}" if types else "")
    return f"{first}\n\n{record['doc']}".rstrip()
