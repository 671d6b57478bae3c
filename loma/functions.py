"""What a program calls: the loaded module, with its functions and structs as attributes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from loma import listings
from loma.errors import suggest
from loma.listings import Listing
from loma.packed_calls import shown
from loma.program import Program, Record
from loma.reports import public
from loma.structs import struct_classes

Functions = Mapping[str, Callable[..., Any]]


class LomaModule:
    """A compiled program, with its functions and structs' classes as attributes: ``module.f(x)``.

    ``__name__`` is that of the generated code, a hash in it, ``__source__`` the program's text,
    ``__folder__`` the folder in the cache with the files that it was compiled from, ``__native__``
    the extension with its tensor functions, if there are any.

    It is pickled as the program's text, with what it imports. One that was unpickled compiles, or
    finds the cache, when an attribute is first asked for.
    """

    __name__: str
    __folder__: Path
    __record__: Record
    __native__: ModuleType | None
    __scalar_functions__: Callable[[LomaModule], Functions]

    def __init__(self, program: Program, load: Callable[[LomaModule], None]) -> None:
        """``load`` gives the module what :meth:`__fill__` takes."""
        self.__program__ = program
        self.__source__ = program.source
        self.__file__ = program.path
        self.__load__ = _not_traced(lambda: load(self))

    def __fill__(
        self,
        record: Record,
        native: ModuleType | None,
        folder: Path,
        scalar_functions: Callable[[LomaModule], Functions],
    ) -> None:
        """``native`` has the operators of the tensor functions, if there are any.

        ``scalar_functions`` is asked once a program wants the first of them.
        """
        self.__name__ = record["namespace"]
        self.__folder__ = folder
        self.__scalar_functions__ = scalar_functions
        self.__native__ = native
        self.__doc__ = program_documentation(record, self.__file__)
        classes = struct_classes([*record["structs"], *record["tensor_structs"]], lambda: self)
        self.__dict__.update(classes)
        if native is not None:
            from loma.tensor_functions import tensor_function

            for item in record["functions"]:
                if item["layer"] == "tensor":
                    function = tensor_function(item, native, classes, self)
                    self.__dict__[item["name"]] = function
                    listings.attach(function, self)
        self.__record__ = record  # last: who finds it finds the rest

    @public
    def show(
        self, stage: str = "parsed", function: str | None = None, device: str = "cpu"
    ) -> Listing:
        """The program, or one function, as text after a stage: see :mod:`loma.pipeline`."""
        from loma import pipeline

        text = pipeline.stage_text(self.__source__, stage, function, self.__file__, device=device)
        return Listing(text, stage)

    def _repr_html_(self) -> str:
        """Its functions, each beside its adjoint."""
        from loma import pipeline

        parsed = pipeline.parsed(self.__source__, self.__file__)
        own = [f.name for f in parsed.functions if f.derivative_of is None]
        return listings.beside(self, own)

    @property
    def __wrapped__(self) -> ModuleType:
        """What inspect.getsource() takes instead of the module."""
        return listings.place_of_module(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _FILLED:
            raise AttributeError(name)  # Python's own questions
        self.__load__()  # first of all: what torch.compile has once looked at, it remembers
        if name in self.__dict__:
            return self.__dict__[name]
        record: Record = self.__dict__["__record__"]
        names = [item["name"] for item in record["functions"]]
        if name in names:
            self.__dict__.update(self.__scalar_functions__(self))
            return self.__dict__[name]
        hint = _derivative(name, names) or suggest(name, [*names, *_struct_names(record)])
        hint = hint or f"its functions are {', '.join(names) or 'none'}"
        raise AttributeError(f"loma module '{record['name']}' has no function '{name}': {hint}")

    def __dir__(self) -> list[str]:
        record = self.__record__
        names = {item["name"] for item in record["functions"]}
        return sorted({*names, *_struct_names(record), "show"})

    def __repr__(self) -> str:
        names = "not loaded yet"
        if "__record__" in self.__dict__:
            names = ", ".join(item["name"] for item in self.__record__["functions"])
        return f"<loma module '{self.__program__.name}' from {self.__file__}: {names}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Record]]:
        return restored, (self.__program__.record(),)

    def __copy__(self) -> LomaModule:
        return self

    def __deepcopy__(self, memo: object) -> LomaModule:
        return self


_FILLED = frozenset(LomaModule.__annotations__)


# What programs call derivatives, before the function's name or behind it.
_DERIVATIVES = {
    "rev_diff": ("d_", "_d_", "grad_", "rev_", "backward_", "vjp_", "d_rev_"),
    "fwd_diff": ("d", "fwd_", "t_", "dual_", "jvp_", "d_fwd_"),
}


def _derivative(name: str, functions: list[str]) -> str | None:
    """How a program asks for the derivative that a name may mean; None where it means none."""
    for mode, affixes in _DERIVATIVES.items():
        for function in functions:
            for affix in affixes:
                if name in (affix + function, f"{function}_{affix.strip('_')}"):
                    return f"ask for it in the program: {name} = {mode}({function})"
    return None


def _struct_names(record: Record) -> list[str]:
    return [struct[0] for struct in (*record["structs"], *record["tensor_structs"])]


def restored(program: Record, function: str | None = None) -> Any:
    """What a pickle has for a module, or for a function of it: files hold this name, and what
    Program.record gives. It compiles nothing. ValueError for what no loma has written."""
    from loma.compiler import known

    module = known(Program.of(program))
    if function is None:
        return module
    if not isinstance(function, str) or function.startswith("__"):
        raise ValueError(f"a loma program has no function {function!r}")
    if "__record__" in module.__dict__:
        return getattr(module, function)
    return UnpickledFunction(module, function)


def restored_layer() -> Any:
    """What a pickle has for a loma.nn.Module, before it gets its state."""
    layers = importlib.import_module("loma.nn")  # of torch, which may not be imported yet
    return layers.Module.__new__(layers.Module)


class UnpickledFunction:
    """A function of a program that was not loaded when it was unpickled: it is when it is called,
    or asked for its signature."""

    def __init__(self, module: LomaModule, name: str) -> None:
        self.__self__ = module
        self.__name__ = self.__qualname__ = name
        self._function: Callable[..., Any] | None = None
        self._load = _not_traced(self._find)

    def _find(self) -> None:
        if self._function is None:
            self._function = getattr(self.__self__, self.__name__)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self._load()  # see LomaModule.__getattr__
        return self._function(*args, **kwargs)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        own = name.startswith("_") and name != "__signature__"
        if own:  # Python's questions, and torch's
            raise AttributeError(name)
        return getattr(getattr(self.__self__, self.__name__), name)

    def __repr__(self) -> str:
        return f"<loma function {self.__name__}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Record, str]]:
        return reduced(self)

    def __copy__(self) -> UnpickledFunction:
        return self

    def __deepcopy__(self, memo: object) -> UnpickledFunction:
        return self


def reduced(function: Any) -> tuple[Callable[..., Any], tuple[Record, str]]:
    """What a function is pickled as: the program, and its name there."""
    return restored, (function.__self__.__program__.record(), function.__name__)


def _not_traced(load: Callable[[], None]) -> Callable[[], None]:
    """The function, which torch.compile calls while it traces: the compiler is not traced."""

    def call() -> None:
        load()

    # What torch.compiler.assume_constant_result does, which would import all of torch.compile.
    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return call


def signature(record: Record) -> inspect.Signature:
    """What Python's tools see of a function's arguments."""
    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    params = record["params"]
    return inspect.Signature(
        [inspect.Parameter(p["name"], kind, default=p.get("default", none)) for p in params]
    )


def documentation(record: Record) -> str:
    """Of a function: its first line as the program has it, and its docstring."""
    params = ", ".join(
        f"{param['name']} : {param['mode']}[{param['type']}]"
        + (f" = {param['default']}" if "default" in param else "")
        for param in record["params"]
    )
    types = record["result_types"]
    result = types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"
    if record["adjoints"]:
        result = f"tuple[{', '.join(types)}]"
    first = f"{record['name']}({params})" + (f" -> {result}" if types else "")
    return f"{first}\n\n{record['doc']}".rstrip()


def program_documentation(record: Record, path: str) -> str:
    """Of a program: the first line of each function, for ``help``."""
    lines = [documentation(shown(item)).split("\n")[0] for item in record["functions"]]
    return "\n".join([f"The loma program '{record['name']}' from {path}.", "", *lines])


def described(call: Callable[..., Any], record: Record, module: str) -> Callable[..., Any]:
    """With what Python's own functions tell about themselves."""
    call.__name__ = call.__qualname__ = record["name"]
    call.__module__ = module
    call.__doc__ = documentation(record)
    call.__signature__ = signature(record)  # type: ignore[attr-defined]
    return call
