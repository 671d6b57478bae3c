"""Statements that move an int variable by a constant, as counters do."""

from __future__ import annotations

from loma.core.ir import Assign, Binary, IntConst, IntType, Stmt, Var


def int_step(stmt: Stmt) -> tuple[Var, int] | None:
    """The variable and the constant of ``i = i + c``, ``i = i - c`` or ``i += c``."""
    match stmt:
        case Assign(Var(_, IntType()) as var, "+=", IntConst(by)):
            return var, by
        case Assign(Var(_, IntType()) as var, "=", Binary("+" | "-" as op, left, IntConst(by))):
            return (var, by if op == "+" else -by) if left == var else None
        case _:
            return None
