"""What statements read and write, for each kind of statement."""

from __future__ import annotations

from typing import get_args

import pytest

from loma.core.effects import (
    Effects, assigned, counters, declared, effects, written, written_places,
)  # fmt: skip
from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, AtomicAdd, Axis, Call, CallStmt, Declare, For, Function, If,
    Index, IndexAssign, IntConst, Member, Param, Pop, Push, Return, StackType, Stmt, StructType,
    TensorType, TupleType, Unpack, Var, While, Zero,
)  # fmt: skip

N, AT, K, X, COND = Var("n", INT), Var("i", INT), Var("k", INT), Var("x", FLOAT), Var("c", INT)
ARRAY, STRUCT = Var("a", ArrayType(FLOAT, None)), Var("s", StructType("S"))
TENSOR, OTHER = Var("t", TensorType((N,))), Var("u", TensorType((N,)))
STACK = Var("stack", StackType(FLOAT, 3))
ELEMENT = Index(ARRAY, (AT,), FLOAT)
MEMBER = Member(Index(Member(STRUCT, "rays", ARRAY.type), (K,), STRUCT.type), "x", FLOAT)
CELL, READ = Index(TENSOR, (AT,), FLOAT), Index(OTHER, (AT,), FLOAT)
CALL = Call("f", (X, ELEMENT, READ, TENSOR, IntConst(2)), TupleType(()))
AXES = (Axis("i", N),)
CALLEE = Function(
    "f",
    (
        Param("p", FLOAT, "In"), Param("q", FLOAT, "Out"), Param("r", FLOAT, "In"),
        Param("w", TENSOR.type, "In"), Param("m", INT, "In"),
    ),
    (), (),
)  # fmt: skip

CASES: list[tuple[Stmt, Effects]] = [
    (Declare(X, None), Effects(declares=(X,))),
    (Declare(X, ELEMENT), Effects((ELEMENT,), declares=(X,))),
    (Assign(X, "=", ELEMENT), Effects((ELEMENT,), (X,))),
    (Assign(MEMBER, "+=", X), Effects((X, K), (MEMBER,), adds=True)),
    (AtomicAdd(ELEMENT, X), Effects((X, AT), (ELEMENT,), adds=True)),
    (IndexAssign(CELL, "=", READ, AXES), Effects((N, READ, AT), (CELL,))),
    (IndexAssign(X, "+=", READ, AXES), Effects((N, READ), (X,), adds=True)),
    (Zero(ELEMENT), Effects((AT,), (ELEMENT,))),
    (Zero(TENSOR), Effects((), (TENSOR,))),
    (Push(STACK, ELEMENT), Effects((ELEMENT,), stacks=(STACK,))),
    (Pop(STACK, ELEMENT), Effects((STACK, AT), (ELEMENT,), stacks=(STACK,))),
    (Unpack((X, TENSOR), CALL), Effects((CALL,), (X, TENSOR), declares=(X, TENSOR))),
    (CallStmt(CALL), Effects((CALL,), (X, ELEMENT, TENSOR))),
    (Return((X, TENSOR)), Effects((X, TENSOR))),
    (If(COND, (Zero(X),), (Zero(ELEMENT),)), Effects((COND,))),
    (For("i", N, (Zero(ELEMENT),)), Effects((N,), counters=(AT,))),
    (While(COND, 3, (Zero(X),)), Effects((COND,))),
]


@pytest.mark.parametrize(("stmt", "expected"), CASES, ids=lambda v: type(v).__name__)
def test_each_statement(stmt: Stmt, expected: Effects) -> None:
    assert effects(stmt) == expected


def test_every_kind_of_statement_is_here() -> None:
    assert {type(stmt) for stmt, _ in CASES} == set(get_args(Stmt))


def test_a_call_of_a_known_function_writes_its_out_arguments() -> None:
    assert effects(CallStmt(CALL), {"f": CALLEE}).writes == (ELEMENT,)


def test_blocks() -> None:
    body = (Declare(X, None), For("i", N, (If(COND, (Zero(ELEMENT),), (CallStmt(CALL),)),)))
    assert list(written_places(body)) == [ELEMENT, X, ELEMENT, TENSOR]
    assert list(assigned(body, {"f": CALLEE})) == ["a", "a"]
    assert written(body, {"f": CALLEE}) == {"x", "a"}
    assert declared(body) == {"x"}
    assert counters(body) == {"i"}
