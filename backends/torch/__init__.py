"""The libtorch backend: tensor functions become operators of PyTorch's dispatcher, in C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loma import cache
from loma.backends.cfamily.identifiers import file_stem
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.torch.files import runtime_files, template
from loma.core.ir import Function, Module, is_tensor_function

if TYPE_CHECKING:
    from loma.core.saving import SplitPair
    from loma.backends.cfamily.device import Device
    from loma.backends.torch.timing import Probe

_NOT_CONTRACTED = ("-ffp-contract=off",)


def generate(
    module: Module,
    device: Device,
    pairs: Sequence[SplitPair] = (),
    names: Sequence[str] | None = None,
    zeroed: Mapping[str, tuple[int, ...]] | None = None,
    timed: bool = False,
    contract: bool = True,
    first: Sequence[str] | None = None,
    overload: str | None = None,
    called: Sequence[str] = (),
) -> GeneratedSource:
    """The module as C++.

    ``device`` runs the loops. ``names`` are the functions that a program may call, all by default;
    ``pairs`` describe what autograd runs for them. ``zeroed`` gives, by function, the positions of
    parameters that callers leave out because they start at zero. ``timed``: the code measures its
    statements. ``contract``: a product and a sum may be rounded as one. ``first``: the functions
    that are compiled at once, all by default (:mod:`loma.backends.torch.parts`). ``overload`` tells
    the operators of functions that a program may call from others of that name; by default it is a
    hash of the code. ``called``: functions whose split pairs are made when they are first called
    under gradients. Errors are those
    of the code generator: an operator that the backend lacks is named, with the program's line.
    """
    from loma.backends.schedule.elementwise import writes_in_place
    from loma.backends.torch import binding, codegen, parts

    names = [function.name for function in module.functions] if names is None else names
    stem = _stem(module.name)
    probes: list[Probe] = []
    rows = binding.function_rows(module, pairs, names, zeroed or {})
    flags = () if contract else _NOT_CONTRACTED
    device = device if contract else _exact(device)
    known = {row.function.name for row in rows}
    numbered = [function for function in module.functions if is_tensor_function(function)]
    context = {
        **_code(module, device, probes if timed else None),
        "header": f"{stem}.h",
        "probes": [probe.row for probe in probes],
        "functions": rows,
        "rows": [codegen.cpp_name(f.name) if f.name in known else "" for f in numbered],
        "in_place": {function.name for function in module.functions if writes_in_place(function)},
        "called": frozenset(called),
        "alias": f"loma_{stem}",
        "contract": contract,
    }
    # The name is a hash of the text: no other code has it.
    context |= {"overload": overload or "", "halves_overload": ""}
    digest = cache.digest(_render(context, "draft"))
    namespace = f"loma_{stem}_{digest[:16]}"
    # A graph that torch.compile has kept may call the halves of another version's pairs: with what
    # these take, give and save their name changes.
    context["overload"] = overload or overload_of(digest)
    context["halves_overload"] = overload_of(
        cache.digest([context["overload"], *binding.interface(rows)])
    )
    source, header = _render(context, namespace)
    lengths = [len(text) for text in context["kernels"]]
    prelude = _prelude(context)
    shared = parts.parts(numbered, lengths, pairs, None if timed else first, flags, prelude)
    return GeneratedSource(
        name=namespace,
        files=((f"{stem}.cpp", source), (f"{stem}.h", header)),
        metadata={
            "operators": {row.name: row.function.name for row in rows},
            "parts": asdict(shared),
        },
        flags=flags,
    )


def overload_of(digest: str) -> str:
    """A hash as the name of an operator's overload, which begins with a letter."""
    return f"h{digest[:16]}"


def generate_specialised(
    module: Module,
    device: Device,
    function: str,
    operator: str,
    slots: Mapping[str, int],
    dtype: Literal["float", "double"],
    contract: bool = True,
) -> GeneratedSource:
    """A function for the sizes that it has been specialised for, or one for a device with kernels
    of its own: C++ that registers its kernel.

    ``operator`` is the full name of the operator, ``slots`` what calls have in theirs, in order.
    ``module`` has nothing but the function and what it calls.
    """
    from loma.backends.torch import codegen

    name = codegen.cpp_name(function)
    stem = file_stem(f"{_stem(module.name)}_{name}")
    code = _code(module, device if contract else _exact(device))
    text = template("specialised.cpp.j2").render(
        **code, function=function, slots=slots, operator=operator, name=name, dtype=dtype
    )
    return GeneratedSource(
        name=f"{stem}_{cache.digest([text])[:16]}",
        files=((f"{stem}.cpp", text),),
        metadata={"prelude": _prelude(code), "kernels": code["launched"]},
        flags=() if contract else _NOT_CONTRACTED,
    )


def kernels_text(function: Function, module: Module, device: Device) -> str:
    """A tensor function with the loops that fusion makes of it, as text."""
    from loma.backends.kernels.printer import print_steps
    from loma.backends.schedule.remarks import remarks
    from loma.backends.torch import codegen

    steps = codegen.steps_of(function, device)
    _, tree = codegen.tree_of(function, steps, module, device)
    return print_steps(function, steps, remarks(tree, device.machine))


def schedule_text(function: Function, module: Module, device: Device) -> str:
    """A tensor function's tree as text."""
    from loma.backends.schedule.host_printer import print_lowered
    from loma.backends.torch import codegen

    steps = codegen.steps_of(function, device)
    return print_lowered(function, codegen.tree_of(function, steps, module, device)[1])


def _code(module: Module, device: Device, probes: list[Probe] | None = None) -> dict[str, Any]:
    """What files with functions have in common; see :func:`codegen.lower_function`."""
    from loma.backends.torch import codegen

    lowered = {  # first, because what cannot be lowered is found here
        function.name: codegen.lower_function(function, module, device, probes)
        for function in module.functions
        if is_tensor_function(function)
    }
    return {
        "path": Path(module.path).name,
        "aten": codegen.calls_aten(module),
        "prelude": device.prelude,
        "light_prelude": device.light_prelude,
        "launches": device.launches,
        "includes": codegen.includes(module, device),
        "helpers": codegen.lower_scalars(module, device.machine),
        "kernels": [one.text for one in lowered.values()],
        "launched": [kernel for one in lowered.values() for kernel in one.kernels],
        "narrow": {name: one.narrow for name, one in lowered.items()},
    }


def _exact(device: Device) -> Device:
    """The device that rounds every operation by itself."""
    return replace(device, machine=replace(device.machine, reciprocals=False, fused=False))


def _prelude(code: Mapping[str, object]) -> str:
    """The header that begins the file as the toolchain compiles it."""
    return str(code["prelude" if code["aten"] else "light_prelude"])


def _render(context: Mapping[str, object], namespace: str) -> tuple[str, ...]:
    names = ("module.cpp.j2", "module.h.j2")
    return tuple(template(name).render(**context, namespace=namespace) for name in names)


def _stem(name: str) -> str:
    """The module's name as part of a C identifier and of a file name: no header of the runtime has
    that name, and none is too long for a folder."""
    stem = file_stem(name)
    taken = (path.stem for path in runtime_files("*.h"))
    return f"{stem}_1" if stem in taken else stem
