"""Loops whose statements write one element at a time: plain C++ loops over pointers.

Elsewhere a statement is a parallel loop and a function of its own, which costs more than one
element. A recurrence in ``for`` statements (``R[i + 1, j + 1] = c[i, j] + min(R[i, j + 1],
R[i + 1, j])``) has nothing to share among threads, so its statements stand in the loops as they
are, and tensors are looked up once before the outermost loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loma.backends.libtorch.access import without_no_diff
from loma.backends.libtorch.context import SerialScope
from loma.backends.libtorch.expressions import element_type, strip
from loma.backends.libtorch.loops import is_library_call
from loma.backends.libtorch.plan import target_axes
from loma.backends.libtorch.timing import timed
from loma.backends.libtorch.trees import data
from loma.backends.writer import Writer
from loma.core import sizes
from loma.core.effects import assigned
from loma.core.ir import (
    Assign, Call, Expr, For, If, Index, IndexAssign, Member, Module, Op, Reduce, Stmt, TensorType,
    Var, While, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.walk import expressions, statements, walk

if TYPE_CHECKING:
    from loma.backends.libtorch.statements import Statements


def is_serial(loop: For | While, module: Module) -> bool:
    """Whether all that the loop does is to write single elements and scalars."""
    inside = list(statements(loop.body))
    if isinstance(loop, While) and not _is_serial(loop, module):
        return False  # the condition is made of more
    return any(isinstance(stmt, IndexAssign) for stmt in inside) and all(
        _is_serial(stmt, module) for stmt in inside
    )


def _is_serial(stmt: Stmt, module: Module) -> bool:
    match stmt:
        case IndexAssign(Index(Var())):
            if target_axes(stmt) or is_library_call(stmt):
                return False
        case Assign(Var() as target) if not isinstance(target.type, TensorType):
            pass
        case Zero(Var()) | For() | While() | If():
            pass
        case _:
            return False
    nodes = [node for expr in expressions(stmt) for node in walk(expr)]
    # a reduction that is no index statement is a nest with temporaries of its own
    alone = not isinstance(stmt, IndexAssign) and any(isinstance(n, Reduce) for n in nodes)
    return not alone and not any(_is_whole(node, module) for node in nodes)


def _is_whole(node: Expr, module: Module) -> bool:
    """Whether a value is made of whole tensors."""
    match node:
        case Op():
            return True
        case Index(base):
            return not isinstance(base, Var | Index | Member)
        case Call(name):
            return is_tensor_function(module.function(name))
        case _:
            return False


def write_serial(owner: Statements, loop: For | While) -> None:
    """Writes the loop where ``owner`` stands."""
    context, writer = owner.context, owner.writer
    tensors = _tensors(loop)
    for name in sorted(tensors):
        if name in owner.lazy and name not in owner.ready:
            owner.allocate(name, "zeros", outermost=False)
    written = set(assigned(loop.body))
    inside = Writer()
    used = SerialScope()
    context.serial = used
    owner.writer = inside
    probes, context.probes = context.probes, None
    lazy, owner.lazy = owner.lazy, {}
    if isinstance(loop, For):
        owner.loop(loop, loop.body)
    else:
        owner.loop_while(loop, loop.body)
    owner.lazy, owner.writer, context.probes = lazy, writer, probes
    context.serial = None
    with timed(context, writer, [loop]), writer.block():
        for base, pointer in used.pointers.items():
            element = element_type(tensors[base])
            access = "mutable_data_ptr" if base in written else "const_data_ptr"
            text = data(context, Var(base, tensors[base]), f"{access}<{element}>")
            const = "" if base in written else "const "
            writer.line(f"{const}{element}* const {pointer} = {text};")
        writer.extend(inside.lines)


def write_zero(owner: Statements, target: Var) -> None:
    """Fills a tensor with zeros by its pointer."""
    context = owner.context
    assert context.serial is not None
    assert isinstance(target.type, TensorType)
    pointer = f"{context.variable(target)}_data_"
    context.serial.pointers[target.name] = pointer
    element = element_type(target.type)
    count = strip(context.ints(sizes.product(context.dims(target))))
    owner.writer.line(f"std::fill_n({pointer}, {count}, {element}(0));")


def _tensors(loop: For | While) -> dict[str, TensorType]:
    return {
        node.name: node.type
        for stmt in statements((loop,))
        for expr in expressions(stmt)
        for node in walk(without_no_diff(expr))
        if isinstance(node, Var) and isinstance(node.type, TensorType)
    }
