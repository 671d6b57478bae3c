"""Scalar functions as Python callables, from a compiled library."""

from __future__ import annotations

import copyreg
import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loma import gpu, listings, runtime_errors
from loma.backends.compilers import LIBRARY_FILE
from loma.backends.scalar import TAKE_FAILURE, entry_name, extension, on_gpu
from loma.backends.scalar.layout import Types
from loma.functions import described, reduced
from loma.program import Record

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
    structs = Types(
        dict(record["structs"]),
        {name: getattr(module, name) for name, _ in record["structs"]},
    )
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
            _on_gpu(module, item, structs),
        )
        call.__self__ = module
        functions[item["name"]] = described(call, item, module.__name__)
        listings.attach(call, module)
    return functions


def _on_gpu(module: LomaModule, item: Record, types: Types) -> on_gpu.OnGpu | None:
    """What runs a @simd function where tensors of a GPU are passed."""
    if not any(param["role"] == "Items" for param in item["all_params"]):
        return None
    launch = partial(gpu.items_launch, module.__program__, item["name"])
    return on_gpu.OnGpu(item, types, launch)


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    assert address is not None
    return address
