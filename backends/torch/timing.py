"""Timers in the generated code, for a program that is compiled to measure itself.

Every statement that handles whole tensors, or every loop that statements were fused to, gets a
:class:`Probe`: a row in the module's table, which a ``loma::Timed`` on the stack adds to
(runtime/timing.h). What the statement moves and computes (:mod:`loma.backends.kernels.cost`) is
evaluated where it runs, for the sizes of that run. Without probes nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext
from loma.backends.cfamily.names import cpp_string
from loma.backends.cfamily.writer import Writer
from loma.backends.kernels.cost import Cost, cost_of, is_work
from loma.core.effects import declared
from loma.core.ir import Element, Expr, Function, Return, Stmt, TensorType, Var
from loma.core.printer import print_stmt
from loma.core.sizes import dims_of
from loma.core.walk import statements, variables
from loma.errors.spans import line_in_file

_WIDTHS: dict[Element, str] = {"float": "sizeof(real)", "float32": "4", "int": "8", "bool": "1"}


@dataclass(frozen=True, slots=True)
class Probe:
    """``text``: the statements, under a heading if they are one loop; ``line``: that of the first
    in the program, 0 if it has none."""

    function: str
    line: int
    text: str

    @property
    def row(self) -> str:
        """The initialiser of a ``loma::Probe``."""
        return f"{{{cpp_string(self.function)}, {self.line}, {cpp_string(self.text)}}}"


@contextmanager
def timed(
    probes: list[Probe] | None,
    context: CppContext,
    writer: Writer,
    block: Sequence[Stmt],
    fresh: bool = False,
    private: frozenset[str] = frozenset(),
    title: str = "",
) -> Iterator[None]:
    """Times what is written inside, where the program is to measure itself, and adds to ``probes``,
    the module's table. Not inside kernels and serial loops: they are timed as a whole.

    ``block`` are the statements that it does, of which ``private`` are the tensors that never reach
    memory; ``fresh``: see :func:`loma.backends.kernels.cost.cost_of`. ``title`` is the heading of a
    loop.
    """
    inside = tuple(statements(tuple(block)))
    whole = context.pointers is None and context.looked_up is None
    work = title or any(is_work(stmt, context.module) for stmt in inside)
    if probes is None or not whole or not work:
        yield
        return
    number = len(probes)
    lines = [line_in_file(stmt.span.line) for stmt in inside if stmt.span.line]
    text = "\n".join([*([title] if title else []), *(print_stmt(stmt) for stmt in block)])
    probes.append(Probe(context.function.name, min(lines, default=0), text))
    name = f"timed{number}_"
    # Nothing runs behind a return: the timer's end stops it.
    returns = bool(block) and isinstance(block[-1], Return)
    writer.line(f"loma::Timed {name}(probes__[{number}]);")
    if returns:
        _write_work(writer, context, name, block, fresh, private)
    yield
    if not returns:
        writer.line(f"{name}.stop();")
        _write_work(writer, context, name, block, fresh, private)


def _write_work(
    writer: Writer,
    context: CppContext,
    name: str,
    block: Sequence[Stmt],
    fresh: bool,
    private: frozenset[str],
) -> None:
    def dims(var: Var) -> tuple[Expr, ...] | None:
        declared = var.type.dims if isinstance(var.type, TensorType) else None
        if declared is None or var.name in context.views:  # a view has the sizes of its panel
            return declared
        return context.dims(var)

    cost = cost_of(block, context.module, fresh=fresh, private=private, dims=dims)
    known = _in_scope(context.function) | context.size_slots() | context.counts
    if cost is None or any(set(variables(expr)) - known for expr in (*cost.moved.values(),
                                                                      cost.flops)):  # fmt: skip
        writer.line(f"{name}.unknown_work();")
        return
    writer.line(f"{name}.work({_bytes(context, cost)}, {c.item_text(context.ints(cost.flops))});")


def _bytes(context: CppContext, cost: Cost) -> str:
    moved = cost.moved.items()
    terms = [c.Binary("*", c.Token(_WIDTHS[e]), context.ints(count)) for e, count in moved]
    return c.item_text(c.chain("+", terms or [c.number(0)]))


def _in_scope(function: Function) -> set[str]:
    """Names of sizes, arguments and variables; those of indices are not among them."""
    names = {param.name for param in function.params}
    for param in function.params:
        names |= {name for dim in dims_of(param) for name in variables(dim)}
    return names | declared(function.body)
