"""Functions as C++: what :mod:`loma.backends.torch` puts into a module's one source file.

A tensor function ``f`` becomes loop functions for its index statements, a template ``f__body`` on
the floating type, which other functions call, and ``f__run``, which takes what the dispatcher has.
Scalar functions become templates of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loma import config, errors
from loma.backends.cfamily.context import CppContext, signature
from loma.backends.cfamily.cpp import scalar_type
from loma.backends.cfamily.device import Device
from loma.backends.cfamily.names import cpp_name, cpp_string
from loma.backends.cfamily.writer import Writer
from loma.backends.kernels.fuse import fuse
from loma.backends.kernels.ir import Step, as_statement
from loma.backends.schedule.choices import WHOLE
from loma.backends.schedule.host import Either, HostNode, Pass
from loma.backends.schedule.verify_host import verify_lowered
from loma.backends.torch import libraries, ops
from loma.backends.torch.files import template
from loma.backends.torch.scalars import lower_scalars
from loma.backends.torch.statements import Statements
from loma.backends.torch.tensors import Host
from loma.core.ir import (
    Function, IndexAssign, IntType, Module, Op, Param, TensorType, Type, is_tensor_function,
)  # fmt: skip
from loma.core.printer import print_expr, print_type
from loma.core.sizes import bindings, dims_of
from loma.core.walk import aggregates, calls, expressions, statements, walk

if TYPE_CHECKING:
    from loma.backends.torch.timing import Probe

__all__ = ["cpp_name", "includes", "lower_function", "lower_scalars"]


def includes(module: Module, device: Device) -> tuple[str, ...]:
    """The ATen headers that the module's operators need."""
    found: set[str] = set()
    for function in module.functions:
        if not is_tensor_function(function):
            continue
        for stmt in statements(function.body):
            if isinstance(stmt, IndexAssign) and (call := device.library_call_of(stmt)):
                found.add(libraries.header(call))
            found |= ops.headers(
                [node for expr in expressions(stmt) for node in walk(expr) if isinstance(node, Op)]
            )
    return tuple(sorted(found))


def calls_aten(module: Module) -> bool:
    """Whether operators on whole tensors are left which ATen's own types are needed for."""
    return any(
        isinstance(node, Op) and not ops.is_light(node)
        for function in module.functions
        if is_tensor_function(function)
        for stmt in statements(function.body)
        if not isinstance(stmt, IndexAssign)
        for expr in expressions(stmt)
        for node in walk(expr)
    )


def steps_of(function: Function, device: Device) -> tuple[Step, ...]:
    """The function's body, fused unless LOMA_OPT leaves that out."""
    if "fusion" not in config.optimisations():
        return function.body
    if device.choices is not None:
        how = device.choices.take("statements", function.name, ("fused", "apart"), WHOLE)
        if how == "apart":
            return function.body
    machine = device.machine
    rounds = machine.square if machine.lanes and not machine.teams else 0
    return fuse(function, device.routine_of, machine.rows, machine.teams, rounds)


def tree_of(
    function: Function, steps: tuple[Step, ...], module: Module, device: Device
) -> tuple[CppContext, tuple[HostNode, ...]]:
    """The tree of a function's steps, and the context that it is spelled in."""
    function = replace(function, body=tuple(map(as_statement, steps)))
    context = CppContext(function, module, device.machine)
    context.choices = device.choices
    tree = device.lower(context, steps)
    verify_lowered(function, tree)
    return context, tree


@dataclass(frozen=True, slots=True)
class Lowered:
    """A function's C++, what is known of its kernels for another device, and which of its tensors
    may keep a narrow dtype: a bit for each (``register_device_kernels`` in tables.h)."""

    text: str
    kernels: list[dict[str, Any]]
    narrow: int


def lower_function(
    function: Function, module: Module, device: Device, probes: list[Probe] | None = None
) -> Lowered:
    """The C++ of a tensor function; see the module's docstring. With ``probes`` it times its
    statements."""
    for type_, span in aggregates(function):
        raise errors.BackendLacksOperator(
            f"'{function.name}' works on tensors, and {print_type(type_)} belongs to scalar "
            "functions: the libtorch backend cannot mix them",
            span,
            hint="put what needs it into a scalar function, and call that in an index statement",
        )
    context, tree = tree_of(function, steps_of(function, device), module, device)
    if device.machine.teams:
        context.helpers = lower_scalars(module, device.machine)
    context.serves_lists = device.choices is None and device.serves_lists(function, tree)
    host = Host(context)
    writer = Writer(1)
    params = []
    for param in function.params:
        name = cpp_name(param.name)
        if not isinstance(param.type, TensorType):
            reference = "&" if param.mode == "Out" else ""
            params.append(f"{scalar_type(param.type, param.span)}{reference} {name}")
        elif param.mode == "Out":
            params.append(f"loma::Tensor& {name}")
        elif param.name in context.dense:
            params.append(f"const loma::Tensor& {name}_in_")
            writer.line(f"const loma::Tensor {name} = loma::dense({name}_in_);")
        else:
            params.append(f"const loma::Tensor& {name}")
    for size, at in bindings(function.params).items():
        value = f"{cpp_name(function.params[at.param].name)}.size({at.dim})"
        if (at.scale, at.offset) != (1, 0):
            value = f"loma::floor_div({value} - {at.offset}, {at.scale})"
        writer.line(f"[[maybe_unused]] const int64_t {cpp_name(size)} = {value};")
    if _is_called(function, module):
        _write_param_checks(writer, context, host)
    Statements(context, host, writer, device, probes).nodes(tree)
    text = template("function.cpp.j2").render(
        name=cpp_name(function.name),
        signature=signature(function),
        loops=context.loops,
        result=_result_type(context),
        params=params,
        body=writer.text(),
        **_entry(function),
    )
    return Lowered(str(text).rstrip("\n"), context.kernels, _narrow(function, tree))


def _is_called(function: Function, module: Module) -> bool:
    return any(
        call.function == function.name for other in module.functions for call in calls(other.body)
    )


def _write_param_checks(writer: Writer, context: CppContext, host: Host) -> None:
    """Checks of the arguments' sizes, for calls from inside: the dispatcher does its own."""

    def argument(param: Param) -> str:
        return cpp_string(f"{context.function.name}: argument '{context.named(param.name)}'")

    for param in context.function.params:
        if isinstance(param.type, TensorType) and param.type.dims is not None:
            place = argument(param)
            shape = host.shape(param.type)
            writer.line(f"loma::check_shape({cpp_name(param.name)}, {shape}, {place});")
    for size, at in bindings(context.function.params).items():
        if at.offset > 0:
            param = context.function.params[at.param]
            place = argument(param)
            text = print_expr(dims_of(param)[at.dim])
            wanted = cpp_string(f"{text} with a whole {size}, 0 or more")
            writer.line(f"loma::check_size({cpp_name(size)}, {place}, {wanted});")


def _entry(function: Function) -> dict[str, object]:
    """What the kernel does around the body: unpacks arguments, packs results."""
    arguments: list[str] = []
    outs: list[str] = []
    finals: list[str] = []
    tensors = ints = 0
    for param in function.params:
        name = f"{cpp_name(param.name)}_out_"
        if isinstance(param.type, IntType):
            source = f"ints[{ints}]"
            ints += 1
        else:
            source = f"tensors[{tensors}]"
            tensors += 1
        if isinstance(param.type, TensorType):
            copied, text = f"loma::Tensor {name} = loma::out({source}, in_place);", source
        else:
            ctype = scalar_type(param.type, param.span)
            text = source if ctype == "int64_t" else f"loma::item<real>({source})"
            copied = f"{ctype} {name} = {text};"
        if param.mode == "Out":
            outs.append(copied)
            finals.append(_packed(param.type, name))
            text = name
        arguments.append(text)
    count = len(function.results)
    results = [
        _packed(type_, "result_" if count == 1 else f"std::get<{k}>(result_)")
        for k, type_ in enumerate(function.results)
    ]
    return {"arguments": arguments, "outs": outs, "results": results + finals}


def _narrow(function: Function, tree: Sequence[HostNode]) -> int:
    """The tensors among the arguments that may keep a narrow dtype: a bit for each."""
    names = {var.name for node in tree if isinstance(node, Pass | Either) for var in node.alone}
    given = [p.name for p in function.params if not isinstance(p.type, IntType)]
    return sum(1 << k for k, name in enumerate(given[:64]) if name in names)


def _packed(type_: Type, text: str) -> str:
    if isinstance(type_, TensorType):
        return text
    number = "int64_t" if isinstance(type_, IntType) else "real"
    return f"loma::scalar<{number}>({text})"


def _result_type(context: CppContext) -> str:
    function = context.function
    types = [context.ctype(type_, function.span) for type_ in function.results]
    if not types:
        return "void"
    return types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>"
