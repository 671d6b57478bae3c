"""Functions and structs of a compiled C library as ctypes objects.

A function that takes or returns structs by value is called through its entry, which has pointers to
them (:mod:`loma.backends.c.functions`): libffi 3.4.4 passes a struct wrongly that is half in the
last integer register. For the host it stays the C function, with its types and its address.
"""

from __future__ import annotations

import ctypes
from _ctypes import FUNCFLAG_CDECL, CFuncPtr
from collections.abc import Callable, Mapping
from typing import Any

from loma import runtime_errors
from loma.structs import leaf

Structs = dict[str, type[ctypes.Structure]]
Check = Callable[[Any, Any, Any], Any]
_plain: Any = CFuncPtr  # its attributes are descriptors, which the properties below stand before


class Error(ctypes.Structure):
    """``loma_error`` of the generated file."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("line", ctypes.c_int),
        ("first", ctypes.c_int),
        ("second", ctypes.c_int),
    )


class Function(CFuncPtr):
    """A C function. What fails in it is raised, whatever ``errcheck`` its host sets; that gets
    several results as a tuple."""

    _flags_ = FUNCFLAG_CDECL
    _restype_ = ctypes.c_int
    __name__ = ""

    _take: Callable[..., int] | None = None  # loma_error_take, where the function can fail
    _results = 1
    _host_check: Check | None = None

    @property  # type: ignore[override]
    def errcheck(self) -> Check | None:
        return self._host_check

    @errcheck.setter
    def errcheck(self, check: Check | None) -> None:
        self._host_check = check
        if self._take is not None or self._results > 1 or check is not None:
            _plain.errcheck.__set__(self, self._check)
        else:
            _plain.errcheck.__delete__(self)

    @errcheck.deleter
    def errcheck(self) -> None:
        self.errcheck = None

    def _check(self, result: Any, function: Any, arguments: Any) -> Any:
        """What ctypes asks to look at the result of each call."""
        error = Error()
        if self._take is not None and self._take(ctypes.byref(error)):
            name = error.function.decode()
            raise runtime_errors.exception(error.kind, name, error.line, error.first, error.second)
        if self._results > 1 and result is not None:
            result = tuple(getattr(result, f"value_{k}") for k in range(self._results))
        return result if self._host_check is None else self._host_check(result, self, arguments)


class _StructFunction(Function):
    """A C function that takes or returns structs by value."""

    _flags_ = FUNCFLAG_CDECL
    _entry: Any = None
    _count = 0  # of arguments
    _returned: type[ctypes.Structure] | None = None

    @property
    def argtypes(self) -> Any:
        return _plain.argtypes.__get__(self)

    @argtypes.setter
    def argtypes(self, types: Any) -> None:
        _plain.argtypes.__set__(self, types)
        self._entry.argtypes = None if types is None else [_by_reference(type_) for type_ in types]

    @property
    def restype(self) -> Any:
        return _plain.restype.__get__(self)

    @restype.setter
    def restype(self, type_: Any) -> None:
        returned = self._returned
        if returned is None:
            self._entry.restype = type_
        elif type_ is not None and not (
            isinstance(type_, type)
            and issubclass(type_, ctypes.Structure)
            and ctypes.sizeof(type_) == ctypes.sizeof(returned)
        ):
            raise TypeError(
                f"'{self.__name__}' returns the struct {returned.__name__}: restype is a struct of "
                "its size, or None"
            )
        _plain.restype.__set__(self, type_)

    def __call__(self, *args: Any) -> Any:
        types, count = self.argtypes, self._count
        if types is None:
            args = tuple(
                _by_reference(type(a)).from_param(a) if isinstance(a, ctypes.Structure) else a
                for a in args
            )
        elif len(args) < count:
            raise TypeError(
                f"this function takes at least {count} argument{'' if count == 1 else 's'} "
                f"({len(args)} given)"
            )
        if self._returned is None:
            return self._check(self._entry(*args), self, args)
        result: Any = self._returned()
        members = [name for name, *_ in self._returned._fields_] if self._results > 1 else []
        targets = [ctypes.byref(result, getattr(self._returned, name).offset) for name in members]
        self._entry(*args[:count], *(targets or [ctypes.byref(result)]), *args[count:])
        if self.restype is None:
            result = None
        elif self.restype is not self._returned and self._results == 1:
            result = self.restype.from_buffer_copy(result)
        return self._check(result, self, args)


def _by_reference(type_: Any) -> Any:
    """What passes the address of a copy where ctypes would pass a struct by value."""
    if not (isinstance(type_, type) and issubclass(type_, ctypes.Structure)):
        return type_

    def from_param(cls: object, value: Any) -> Any:
        # ctypes' own check crashes when it meets what byref gives
        while not isinstance(value, type_):
            if not hasattr(value, "_as_parameter_"):
                found = type(value).__name__
                raise TypeError(f"expected {type_.__name__} instance instead of {found}")
            value = value._as_parameter_
        return ctypes.byref(type_.from_buffer_copy(value))

    return type(type_.__name__, (), {"from_param": classmethod(from_param)})


def function(library: ctypes.CDLL, record: Mapping[str, Any], structs: Structs) -> Function:
    """The function of a record of :func:`loma.backends.c.generate`, with its C types set."""
    name, symbol, entry = record["name"], record["symbol"], record["entry"]
    made: Any = (Function if entry is None else _StructFunction)((symbol, library))
    made.__name__ = name
    made._take = library["loma_error_take"] if record["fallible"] else None
    made._results = len(record["results"])
    results = [ctype(type_, structs) for type_ in record["results"]]
    restype = results[0] if len(results) == 1 else None
    if len(results) > 1:
        members = [(f"value_{k}", type_) for k, type_ in enumerate(results)]
        restype = type(f"{name}_results", (ctypes.Structure,), {"_fields_": members})
    if entry is not None:
        made._entry = library[entry]
        made._entry.restype = None
        made._count = len(record["all_params"])
        if isinstance(restype, type) and issubclass(restype, ctypes.Structure):
            made._returned = restype
    made.argtypes = [_argument(param, structs) for param in record["all_params"]]
    made.restype = restype
    made.errcheck = None
    found: Function = made
    return found


def structures(records: list[Any]) -> Structs:
    """The structs of a program, parts first."""
    structs: Structs = {}
    for name, members in records:
        fields = [(member, ctype(type_, structs)) for member, type_ in members]
        # as in C, which has no struct without members
        fields = fields or [("loma_nothing", ctypes.c_int)]
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return structs


def ctype(type_: list[Any], structs: Structs) -> Any:
    """The ctypes type of a type record; see :mod:`loma.structs`."""
    match type_:
        case ["int"]:
            return ctypes.c_int
        case ["float"]:
            return ctypes.c_float
        case ["struct", name]:
            return structs[name]
        case ["array", element, None]:
            return ctypes.POINTER(ctype(element, structs))
        case ["array", element, size]:
            return ctype(element, structs) * size
        case _:
            raise AssertionError(type_)


def _argument(param: Mapping[str, Any], structs: Structs) -> Any:
    type_ = param["record"]
    if type_[0] == "array":
        pointed = ctype(type_[1], structs)
    elif param["role"] in ("Out", "Adjoint"):
        pointed = ctype(type_, structs)
    else:
        return ctype(type_, structs)
    # ints have adjoints that nothing reads or writes
    if param["role"] == "Adjoint" and leaf(type_)[0] == ["int"]:
        return ctypes.POINTER(pointed)
    return _pointer(pointed, param["name"])


def _pointer(pointed: Any, name: str) -> Any:
    """``POINTER(pointed)`` as the type of an argument, without NULL."""
    base = ctypes.POINTER(pointed)

    def from_param(cls: object, value: Any) -> Any:
        if value is None or (isinstance(value, base) and not value):
            raise TypeError(f"'{name}' must not be NULL")
        return base.from_param(value)

    members = {"_type_": pointed, "from_param": classmethod(from_param)}
    return type(base.__name__, (base,), members)
