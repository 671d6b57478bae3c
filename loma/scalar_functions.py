"""Scalar functions as Python callables, from a compiled library."""

from __future__ import annotations

import copyreg
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loma import listings, runtime_errors
from loma.backends.compilers import LIBRARY_FILE
from loma.backends.scalar import TAKE_FAILURE, entry_name, extension
from loma.functions import Record, described, reduced

if TYPE_CHECKING:
    from loma.functions import LomaModule


def load(module: LomaModule, record: Record, folder: Path) -> dict[str, Callable[..., Any]]:
    """The scalar functions of the module's record, by name. Calls check their arguments."""
    native = extension()
    copyreg.pickle(native.ScalarFunction, reduced)
    types = native.Types()
    for name, members in record["structs"]:
        types.add_struct(name, getattr(module, name), members)
    records = [item for item in record["functions"] if item["layer"] == "scalar"]
    loaded = ctypes.CDLL(str(folder / LIBRARY_FILE))
    take_failure = _address(loaded, TAKE_FAILURE) if hasattr(loaded, TAKE_FAILURE) else 0
    functions = {}
    for number, item in enumerate(records):
        call = native.function(
            types,
            item["name"],
            [
                (param["name"], param["record"], param["role"], param.get("default"))
                for param in item["all_params"]
            ],
            item["results"],
            _address(loaded, entry_name(number)),
            take_failure,
            runtime_errors.exception,
        )
        call.__self__ = module
        functions[item["name"]] = described(call, item, module.__name__)
        listings.attach(call, module)
    return functions


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    assert address is not None
    return address
