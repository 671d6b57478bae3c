"""The stages of the compiler, in order, with the checks between them.

====================  ==============================================================================
``parsed``            the program's text as a typed module
``adjoint``           with the derivatives that the program asks for
``optimised``         with what autograd runs for each differentiable function, simplified
``kernels``           tensor functions with the loops that fusion made
``schedule``          trees: memory, checks, library calls, and all loops as they run
``cpp``               C++ for libtorch
``c``                 the scalar layer of ``adjoint`` as C99
====================  ==============================================================================

A user's mistake is a :class:`loma.errors.UserError` that knows its place in the text; what
:func:`loma.core.verify.verify` finds between two stages is a defect of the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from loma import cache
from loma.core.ir import Function, Module, is_tensor_function
from loma.core.names import Names, module_names
from loma.core.packing import Packings
from loma.core.printer import print_function, print_module
from loma.core.saving import Save, SplitPair
from loma.core.walk import calls, aggregates
from loma.deep import deep
from loma.errors import NotDifferentiable, UserError, UserWarning, suggest
from loma.errors.excerpts import Text

if TYPE_CHECKING:
    from loma.backends.c import Options
    from loma.backends.cfamily.device import Device
    from loma.backends.cfamily.source import GeneratedSource
    from loma.backends.schedule.choices import Choices

STAGES = ("parsed", "adjoint", "optimised", "kernels", "schedule", "cpp", "c")
# What has a form for each device. "source" is the last of them: C++, for GPUs with CUDA's kernels.
DEVICE_STAGES = ("kernels", "schedule", "cpp")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Optimised:
    """A module with what autograd runs.

    ``names`` are the functions that a program may call. ``zeroed`` gives, by function, the
    positions of arguments that start at zero and that no caller passes: the adjoints of a function
    that ``rev_diff`` made, and so of the halves of its split pair. ``save``: see
    :mod:`loma.ad.tensor.saving`. ``first`` are functions that no other one calls: what a program is
    expected to begin with; ``called`` those that another one calls, whose own pairs are made when
    they are first called under gradients themselves.
    """

    module: Module
    pairs: tuple[SplitPair, ...]
    names: tuple[str, ...]
    zeroed: dict[str, tuple[int, ...]]
    save: Save = "auto"
    first: tuple[str, ...] = ()
    called: tuple[str, ...] = ()

    @property
    def functions(self) -> list[Function]:
        """Those that a program may call."""
        return [function for function in self.module.functions if function.name in self.names]

    @property
    def tensor_functions(self) -> list[Function]:
        return [function for function in self.functions if is_tensor_function(function)]

    @property
    def scalar_functions(self) -> list[Function]:
        return [function for function in self.functions if not is_tensor_function(function)]


def parsed(source: str, path: str = "<text>", name: str | None = None) -> Module:
    from loma import frontend

    with _located(source, path):
        module = frontend.parse(source, path)
        return _verified(replace(module, name=name) if name else module)


def asking(module: Module, functions: Iterable[str]) -> Module:
    """The program, read again with requests for the reverse derivatives of these functions."""
    names = Names(module_names(module))
    lines = [f"{names.fresh(f'd_{name}')} = rev_diff({name})" for name in functions]
    text = Text("\n".join([module.source, *lines, ""]))
    text.imports = getattr(module.source, "imports", [])
    return parsed(text, module.path, module.name)


def adjoint(module: Module) -> Module:
    from loma import ad

    with _located_in(module):
        return _verified(ad.differentiate(module))


def optimised(
    module: Module, names: Iterable[str], save: Save = "auto", every: bool = False
) -> Optimised:
    """Adds the split pairs of functions.

    Those of derivatives are made when they are first needed, and so are, unless ``every`` is asked
    for, those of functions that another one calls: as a rule it is that one which programs
    differentiate.
    ``module`` is the stage ``adjoint``, ``names`` what the program itself names.
    """
    from loma import ad, passes

    names = tuple(names)
    wanted = [
        f.name
        for f in module.functions
        if is_tensor_function(f)
        and f.name in names
        and f.primal is None
        and f.tangent_of is None
        and f.derivative_of is None
        and not any(aggregates(f))  # those the backend refuses
    ]
    called: set[str] = set()
    if not every:
        called = {call.function for name in wanted for call in calls(module.function(name).body)}
    first = [name for name in wanted if name not in called]
    with _located_in(module):
        module = _verified(passes.canonical_form(module))
        split, pairs = ad.split_pairs(module, names=first, save=save)
        final = _verified(passes.optimise(_verified(split)))
    zeroed = {
        function.name: tuple(k for k, p in enumerate(function.params) if p.mode == "Out")
        for function in module.functions
        if function.primal is not None
    }
    own = tuple(name for name in wanted if name in called)
    return Optimised(final, pairs, names, zeroed, save, tuple(first), own)


def program(
    source: str,
    path: str = "<text>",
    name: str | None = None,
    save: Save = "auto",
    every: bool = False,
) -> Optimised:
    """From the text to the stage ``optimised``."""
    module = parsed(source, path, name)
    return optimised(adjoint(module), module_names(module), save, every)


@dataclass(frozen=True, slots=True)
class Made:
    """What the runtime asks for when a program first needs it, of one function of a module.

    "derivative": what autograd runs for it (of a derivative itself, or half of a split pair).
    "tangents": its forward derivative, which takes the place of the function: the arguments at
    ``positions`` are each followed by their tangent, and so is each float result and each of these
    arguments that is written. "batched": the function for samples that differ in the arguments at
    ``positions`` (:mod:`loma.passes.batching`).
    """

    kind: Literal["derivative", "tangents", "batched"]
    function: str
    positions: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.kind} of {self.function} {self.positions}"


def made(base: Optimised, asked: Made) -> Optimised | None:
    """The stage ``optimised`` of what the runtime asks for; None for a function that has no form
    for several samples."""
    match asked.kind:
        case "derivative":
            return derived(base, asked.function)
        case "tangents":
            return _tangents(base, asked.function, asked.positions)
        case "batched":
            return _batched(base, asked.function, asked.positions)


def derived(base: Optimised, function: str) -> Optimised:
    """What a derivative of ``function`` (a derivative itself, or half of a split pair) needs.

    Saved values are functions of the arguments, so a pair's halves are differentiated together."""
    from loma import ad, passes

    names: tuple[str, ...] = (function,)
    zeroed = dict(base.zeroed)
    for pair in base.pairs:
        if function in (pair.forward, pair.backward) and any(
            source.kind == "saved" for source in pair.sources
        ):
            names = (pair.forward, pair.backward)
    with _located_in(base.module):
        start = passes.canonical_form(_reachable(base.module, names))
        split, pairs = ad.split_pairs(_reachable(start, names), list(names), base.save)
        zeroed |= {pair.forward: zeroed.get(pair.primal, ()) for pair in pairs}
        final = _verified(passes.optimise(_verified(split)))
        return Optimised(final, pairs, names, zeroed, base.save, names)


def _tangents(base: Optimised, function: str, positions: tuple[int, ...]) -> Optimised:
    from loma import ad, passes

    with _located_in(base.module):
        start = passes.canonical_form(_reachable(base.module, (function,)))
        module = ad.with_tangents(start, function, frozenset(positions))
        final = _verified(passes.optimise(_verified(_reachable(module, (function,)))))
    final = replace(final, warnings=tuple(_unused_derivatives(start)))
    own = final.function(function)
    outs = tuple(k for k, param in enumerate(own.params) if param.mode == "Out")
    zeroed = {function: outs} if base.zeroed.get(function) else {}
    return Optimised(final, (), (function,), zeroed, base.save, (function,))


def _unused_derivatives(module: Module) -> Iterator[UserWarning]:
    """A warning for each tensor function that has a derivative of its own."""
    for own in module.functions:
        if own.derivative_of is not None and is_tensor_function(own):
            yield UserWarning(
                f"the tangent of '{own.derivative_of}' is that of its own statements: "
                f"'{own.name}', its derivative, serves reverse mode only",
                own.span,
                hint="take the derivative by reverse mode (torch.func.vjp), or see that both agree",
            )


def _batched(base: Optimised, function: str, positions: tuple[int, ...]) -> Optimised | None:
    from loma import passes

    with _located_in(base.module):
        module = passes.batched(_reachable(base.module, (function,)), function, positions)
        if module is None:
            return None
        final = _verified(passes.optimise(_verified(module)))
    zeroed = {function: base.zeroed.get(function, ())}
    return Optimised(final, (), (function,), zeroed, base.save, (function,))


def generated(
    stage: Optimised, timed: bool = False, contract: bool = True, overload: str | None = None
) -> GeneratedSource:
    """The tensor functions in C++, with the scalar functions that they call; ``timed``: the code
    measures its statements; ``contract``: a product and a sum may be rounded as one; ``overload``:
    see :func:`loma.backends.torch.generate`."""
    from loma.backends import registry
    from loma.backends import torch as libtorch

    with _located_in(stage.module):
        return libtorch.generate(
            stage.module, registry.CPU, stage.pairs, stage.names, stage.zeroed, timed, contract,
            stage.first, overload, stage.called,
        )  # fmt: skip


def specialised(
    stage: Optimised,
    function: str,
    values: Mapping[str, int],
    namespace: str,
    dtype: Literal["float", "double"] = "float",
    contract: bool = True,
    choices: Choices | None = None,
) -> GeneratedSource:
    """One tensor function for sizes and ints that are known, by name: a kernel of its own, which
    registers itself for the function's operator in ``namespace``, for calls in that type.
    ``choices`` says which ways lowering goes, and hears of those that there were."""
    from loma import passes
    from loma.backends import registry
    from loma.backends import torch as libtorch
    from loma.backends.torch import binding
    from loma.backends.cfamily.names import cpp_name

    general = find(stage.module, function)
    names = binding.slot_names(general, stage.zeroed.get(function, ()))
    with _located_in(stage.module):
        module = passes.optimise(_verified(known_sizes(stage.module, function, values)))
        slots = {name: values[name] for name in names}
        operator = f"{namespace}::{cpp_name(function)}"
        return libtorch.generate_specialised(
            _verified(module), replace(registry.CPU, choices=choices), function, operator, slots,
            dtype, contract,
        )  # fmt: skip


def device_part(
    stage: Optimised,
    function: str,
    namespace: str,
    dtype: Literal["float", "double"] = "float",
    contract: bool = True,
    values: Mapping[str, int] | None = None,
    choices: Choices | None = None,
) -> GeneratedSource:
    """One tensor function for GPUs: host code with the kernels that it starts, which registers
    itself for the function's operator in ``namespace``, for calls in that type on such a device.

    With ``choices``, as :func:`specialised` has them, it is made for the sizes and ints ``values``,
    though it would compute with others, too, and is used where it is loaded by itself."""
    from loma.backends import registry
    from loma.backends import torch as libtorch
    from loma.backends.cfamily.names import cpp_name

    values = values or {}
    if choices is not None:
        choices.sizes = values
    with _located_in(stage.module):
        module = _on_gpu(_reachable(stage.module, (function,)))
        operator = f"{namespace}::{cpp_name(function)}"
        return libtorch.generate_specialised(
            module, replace(registry.CUDA, choices=choices), function, operator, values, dtype,
            contract,
        )  # fmt: skip


def device_parts(module: GeneratedSource) -> list[str]:
    """The functions of the stage ``cpp`` that have such a part."""
    return list(module.metadata["operators"].values())


def _on_gpu(module: Module) -> Module:
    from loma.passes.device.numbers import on_device

    return _verified(on_device(module))


def known_sizes(module: Module, function: str, values: Mapping[str, int]) -> Module:
    """That function, specialised, with what it calls."""
    from loma import passes

    own = passes.specialise(find(module, function), values)
    module = _reachable(module, (function,))
    functions = tuple(own if f.name == function else f for f in module.functions)
    return replace(module, functions=functions)


def generated_scalars(stage: Optimised) -> GeneratedSource:
    """The scalar functions in C, to be called from Python."""
    from loma.backends import scalar

    names = [function.name for function in stage.scalar_functions]
    with _located_in(stage.module):
        return scalar.generate(_reachable(stage.module, tuple(names)), names)


def generated_c(module: Module, options: Options | None = None) -> GeneratedSource:
    """Scalar functions as a C file for any host; ``module`` is the stage ``adjoint``."""
    from loma.backends import c

    with _located_in(module):
        return c.generate(module, options or c.Options())


def items_kernel(module: Module, function: str) -> tuple[str, str]:
    """The kernel of a @simd function for GPUs as CUDA C++, and its name."""
    from loma.backends.c import codegen

    with _located_in(module):
        return codegen.device_text(_reachable(module, (function,)), function)


def function_records(stage: Optimised) -> list[dict[str, Any]]:
    """What Python callables are made from, as JSON values."""
    from loma.backends import scalar
    from loma.backends.torch import binding

    return [
        binding.record(function, stage.zeroed.get(function.name, ()), stage.module.packings)
        if is_tensor_function(function)
        else scalar.function_record(function)
        for function in stage.functions
    ]


def function_texts(stage: Optimised, names: Iterable[str]) -> dict[str, str]:
    """By function, a hash of what it computes: its text and that of all that it calls."""
    texts = {f.name: print_function(f, stage.module) for f in stage.module.functions}

    def text(name: str) -> str:
        needed = {f.name for f in _reachable(stage.module, (name,)).functions}
        return cache.digest([name, *(texts[own] for own in sorted(needed))])

    return {name: text(name) for name in names}


def tensor_struct_records(module: Module) -> list[Any]:
    """Structs with tensors as :mod:`loma.structs` takes them, parts first."""
    structs = module.packings.structs if module.packings else {}

    def record(kind: str) -> list[str]:
        return ["struct", kind] if kind in structs else [kind]

    return [
        [name, [[member, record(kind)] for member, kind in members.items()]]
        for name, members in structs.items()
    ]


def stage_text(
    source: str,
    stage: str,
    function: str | None = None,
    path: str = "<text>",
    save: Save = "auto",
    device: str = "cpu",
) -> str:
    """The program after a stage as text: loma, C++ for ``cpp`` (or ``source``), C for ``c``; or one
    function of it, which the stage ``adjoint`` has with its reverse derivatives. ``device``: whose
    loops. Where a program does not ask for a derivative, ``d_f`` is that of ``f``.

    ValueError for a stage, a device or a function that there is none of.
    """
    stage = "cpp" if stage == "source" else stage
    if stage not in STAGES:
        raise ValueError(f"no stage '{stage}': the stages are {', '.join(STAGES)}")
    _check_device(device, stage)
    module = parsed(source, path)
    if stage == "parsed":
        return _loma_text(module, function)
    module = _with_request(module, function)
    if stage == "adjoint":
        return _adjoint_text(module, function)
    if stage == "c":
        return _c_text(adjoint(module), function)
    final = optimised(adjoint(module), module_names(module), save, every=True)
    if stage == "optimised":
        return _loma_text(final.module, function)
    if device == "cuda":
        return _gpu_text(final, stage, function)
    from loma.backends import registry

    if stage in ("kernels", "schedule"):
        return _loops_text(final.module, stage, function, registry.CPU)
    if function is None:
        return generated(final).text
    from loma.backends.torch import codegen

    return codegen.lower_function(find(final.module, function), final.module, registry.CPU).text


def _check_device(device: str, stage: str) -> None:
    if device not in DEVICES:
        raise ValueError(f"no device '{device}': the devices are {', '.join(DEVICES)}")
    if device != "cpu" and stage not in DEVICE_STAGES:
        raise ValueError(
            f"the stage {stage} is the same for all devices: "
            f"--device {device} is for {', '.join(DEVICE_STAGES)}"
        )


def find(module: Module, name: str) -> Function:
    """The function of that name; ValueError, with the nearest name, when there is none."""
    names = [function.name for function in module.functions]
    if name in names:
        return module.function(name)
    for made in module.derivatives:
        if made.name == name:
            raise ValueError(
                f"'{name}' = {made.mode}({made.of}) is made after this stage: ask for a later one, "
                "such as adjoint"
            )
    if (primal := name.removeprefix("d_")) in names:
        raise ValueError(
            f"{module.path} does not ask for '{name}': write {name} = rev_diff({primal}) into it, "
            "or look at a stage from adjoint on, which has it in any case"
        )
    names += [made.name for made in module.derivatives]
    hint = suggest(name, names) or f"it has {', '.join(names) or 'none'}"
    raise ValueError(f"{module.path} has no function '{name}': {hint}")


def _loma_text(module: Module, function: str | None) -> str:
    if function is None:
        return print_module(module)
    return print_function(find(module, function), module)


def adjoint_text(source: str, function: str, path: str = "<text>") -> str:
    """The reverse derivatives of one function as text, also where the program asks for none.

    Raises NotDifferentiable; ValueError for a function that there is none of.
    """
    module = parsed(source, path)
    if function not in module_names(module):
        find(module, function)
    if not _reverse_of(module, function):
        module = asking(module, [function])
    made = adjoint(module)
    return "\n\n\n".join(_loma_text(made, name) for name in _reverse_of(module, function))


def _adjoint_text(module: Module, function: str | None) -> str:
    if function is None:
        return print_module(adjoint(module if module.derivatives else _asking_for_all(module)))
    if function not in {f.name for f in module.functions if _has_derivative(f)}:
        return _loma_text(adjoint(module), function)
    return "\n\n\n".join(
        (_loma_text(module, function), adjoint_text(module.source, function, module.path))
    )


def _reverse_of(module: Module, function: str) -> list[str]:
    """The names of the reverse derivatives that a program asks for."""
    return [d.name for d in module.derivatives if (d.mode, d.of) == ("rev_diff", function)]


def _has_derivative(function: Function) -> bool:
    """Whether there is something to differentiate, and with respect to something."""
    from loma.ad.activity import carries_derivative

    given = [param.type for param in function.params if param.mode == "In"]
    made = [*function.results, *(param.type for param in function.params if param.mode == "Out")]
    own = function.derivative_of is None
    return own and any(map(carries_derivative, given)) and any(map(carries_derivative, made))


def _with_request(module: Module, function: str | None) -> Module:
    """Where ``function`` is d_f, and the program has an f but no d_f: with a request for that."""
    primal = (function or "").removeprefix("d_")
    functions = {f.name for f in module.functions}
    if primal == function or function in module_names(module) or primal not in functions:
        return module
    return asking(module, [primal])


def _asking_for_all(module: Module) -> Module:
    """With requests for what no other function calls, as far as it has derivatives."""
    called = {call.function for f in module.functions for call in calls(f.body)}
    wanted = []
    for function in module.functions:
        if function.name not in called and _has_derivative(function):
            with suppress(NotDifferentiable):
                adjoint(asking(module, [function.name]))
                wanted.append(function.name)
    return asking(module, wanted)


def _loops_text(module: Module, stage: str, function: str | None, device: Device) -> str:
    """The tensor functions with fused loops, or with all that runs."""
    from loma.backends import torch as libtorch

    if function is not None and not is_tensor_function(find(module, function)):
        raise ValueError(
            f"'{function}' is a scalar function, which has no loops of its own: look at the stage c"
        )
    text = libtorch.kernels_text if stage == "kernels" else libtorch.schedule_text
    functions = module.functions if function is None else (find(module, function),)
    with _located_in(module):
        texts = [text(f, module, device) for f in functions if is_tensor_function(f)]
    return "\n\n".join(texts)


def _gpu_text(stage: Optimised, kind: str, function: str | None) -> str:
    """The same for GPUs; for ``cpp`` the files that are compiled when a function is first called
    there, with its kernels."""
    from loma.backends import registry

    items = [own.name for own in stage.scalar_functions if own.simd]
    tensors = [own.name for own in stage.tensor_functions]
    if not tensors and not items:
        raise ValueError(
            f"{stage.module.path} has no function of tensors and no @simd function for a GPU to run"
        )
    if function is not None:
        found = find(stage.module, function)
        if not is_tensor_function(found) and not found.simd:
            raise ValueError(
                f"'{function}' is a scalar function: GPUs run it inside of the kernels that call it"
            )
        items, tensors = ([function], []) if found.simd else ([], [function])
    if kind != "cpp":
        if not tensors:
            raise ValueError(
                "a @simd function is one kernel, whose loops are its own: look at the stage source"
            )
        own = _on_gpu(_reachable(stage.module, tuple(tensors)))
        return _loops_text(own, kind, function, registry.CUDA)
    texts = []
    if tensors:
        module = generated(stage)
        names = device_parts(module) if function is None else tensors
        texts = [device_part(stage, name, module.name).text for name in names]
    texts += [items_kernel(stage.module, name)[0] for name in items]
    return "\n".join(texts)


def _c_text(module: Module, function: str | None) -> str:
    from loma.backends import c

    if function is None:
        return generated_c(module).text
    with _located_in(module):
        return c.function_text(module, find(module, function).name)


def _verified(module: Module) -> Module:
    from loma.core.verify import verify

    verify(module)
    return module


@contextmanager
def _located(source: str, path: str, packings: Packings | None = None) -> Iterator[None]:
    """Tells errors that pass which text they point into, and how it calls things."""
    try:
        with deep():
            yield
    except UserError as error:
        error.locate(source, path)
        if packings is not None:
            error.rename(packings.shown)
        raise


def _located_in(module: Module) -> AbstractContextManager[None]:
    return _located(module.source, module.path, module.packings)


def _reachable(module: Module, names: tuple[str, ...]) -> Module:
    """The module with no more than those functions, what they call, and their own derivatives."""
    functions = {function.name: function for function in module.functions}
    own = {f.derivative_of: f.name for f in module.functions if f.derivative_of is not None}
    wanted: set[str] = set()
    waiting = [name for name in names if name in functions]
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += [call.function for call in calls(functions[name].body)]
            waiting += [own[name]] if name in own else []
    kept = tuple(function for function in module.functions if function.name in wanted)
    return replace(module, functions=kept, derivatives=())
