"""Functions on GPUs: what is compiled when one is first called with CUDA tensors.

The C++ that launches a function's kernels is compiled then, as a library beside the module; the
kernels themselves, which it has as text, when they are first launched
(:mod:`loma.backends.cuda.images`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from loma import cache, config
from loma.reports import public

if TYPE_CHECKING:
    from loma.backends.torch.parts import Real
    from loma.program import Program, Record


@public
def check_device() -> None:
    """Waits for all GPUs, and raises what a kernel has found wrong since the last call.

    Kernels run behind the calls that launch them: a subscript outside of its tensor is reported in
    the next call of a function of loma on that GPU, or here. ``LOMA_CHECK=sync`` has every call
    wait for its kernels, so that the right one raises.
    """
    from loma import compiler

    for native in compiler.natives():
        native.check_devices()  # of all modules
        return


def attach(native: ModuleType) -> None:
    """Lets a module that has just been loaded have its kernels compiled."""
    from loma.backends.cuda import images

    specialises = "specialise" in config.optimisations()
    known = config.specialisations() if specialises else 0
    native.set_image_hooks(images.image, images.later, known)


_ALLOCATING_BLOCKS = 256
# Of it nothing is ever called.
_HOST = "def host(x : In[Tensor[N]]) -> Tensor[N]:\n    return x\n"


@functools.cache
def host() -> ModuleType:
    """The runtime in a module of its own: it launches kernels that belong to no tensor function."""
    from loma.compiler import load
    from loma.program import Program

    native = load(Program(_HOST, "<loma>", "loma_host")).__native__
    assert native is not None
    return native


def items_launch(program: Program, function: str) -> Callable[[int, int, list[bytes]], None]:
    """What launches a @simd function's kernel: on the device of that number, for so many items,
    with the bytes of its parameters. The kernel itself is compiled at its first launch."""

    def make() -> tuple[Path, dict[str, str]]:
        from loma import pipeline

        stage = pipeline.program(program.source, program.path, program.name)
        text, name = pipeline.items_kernel(stage.module, function)

        def write(folder: Path) -> None:
            (folder / "kernel.cu").write_text(text, encoding="utf-8")

        return cache.obtain(cache.digest(["items", name, text]), write), {"name": name}

    key = program.key(f"items {function}")
    folder, record = cache.recall(key, ("name",), make)
    native = host()
    text = (folder / "kernel.cu").read_text("utf-8")
    kernel = native.items_kernel(record["name"], text)
    # Threads that allocate share the device's heap: fewer at a time have more of it each.
    blocks = _ALLOCATING_BLOCKS if "LOMA_ALLOCATES" in text else 0
    return functools.partial(native.launch_items, kernel, blocks)


def build(
    program: Program, key: str, module: Path, record: Record, operator: str, real: Real
) -> Path:
    """The folder with what launches an operator's kernels, from the cache or compiled now.

    ``key`` is the program's in the cache's index, which has the record; ``module`` is the folder of
    the compiled module.
    """
    function, namespace = record["operators"][operator], record["namespace"]
    from loma.backends import toolchain

    def make() -> tuple[Path, dict[str, object]]:
        from loma import pipeline

        stage = program.stage(key)
        source = pipeline.device_part(stage, function, namespace, real, program.contract)
        return toolchain.build_specialisation(source, module, toolchain.detect()), {}

    return cache.recall(program.key(f"cuda {operator} {real}"), (), make)[0]
