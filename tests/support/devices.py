"""Tests on other devices than the CPU: ``--device cuda`` and ``--device shim``.

Tests make CPU tensors. With ``cuda`` each call of a tensor function moves them to the GPU, and what
it gives back; gradients go the same ways. With ``shim`` calls stay on the CPU, but what runs is
what a GPU would run, compiled by g++ (``tests/support/cuda_shim/``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


autocast = "cpu"  # the type of device whose calls are cast


def use(device: str) -> None:
    """Lets the tests of this process run there."""
    global autocast
    if device == "shim":
        import shim

        from loma.backends.cuda import images

        os.environ["LOMA_DEVICE"] = "shim"
        os.environ["LOMA_CHECK"] = "sync"
        os.environ["LOMA_CUDA_DRIVER"] = str(shim.driver())
        images.use(shim.image)
    elif device == "cuda":
        import torch

        from loma import tensor_functions

        autocast = "cuda"
        torch.backends.cudnn.allow_tf32 = False  # as in products: references are exact
        entry = tensor_functions._entry
        tensor_functions._entry = lambda record, *others: _moved(entry(record, *others), record)


def _moved(call: Callable[..., Any], record: dict[str, Any]) -> Callable[..., Any]:
    import torch

    import loma
    from loma.packed_calls import positional

    names = [param["name"] for param in record["params"]]
    outs = [k for k, param in enumerate(record["params"]) if param["mode"] == "Out"]

    def there(value: Any) -> Any:
        return value.cuda() if isinstance(value, torch.Tensor) and value.is_cpu else value

    def back(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(back, value))
        return value.cpu() if isinstance(value, torch.Tensor) and value.is_cuda else value

    def moved(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or len(args) + len(kwargs) != len(names):
            return call(*args, **kwargs)
        values = positional(record["name"], names, args, kwargs)
        given = [there(value) for value in values]
        result = call(*given)
        loma.check_device()
        for k in outs:
            if isinstance(values[k], torch.Tensor) and values[k] is not given[k]:
                values[k].copy_(given[k])
        moves = any(old is not new for old, new in zip(values, given, strict=True))
        return back(result) if moves else result

    return moved
