"""The verifier accepts what is well formed and names what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loma import builder
from loma.ir import (
    FLOAT, INT, Assign, Axis, Binary, Call, CallStmt, Declare, Derivative, Expr, FloatConst, For,
    Function, If, Index, IndexAssign, IntConst, Module, Op, Param, Reduce, Return, Select, Stmt,
    TensorType, TupleType, Type, Unary, Unpack, Var, Zero, ZeroPad,
)  # fmt: skip
from loma.verify import VerificationError, verify

N, M, K = (Var(name, INT) for name in "NMK")
I, J, L = Axis("i", N), Axis("j", M), Axis("k", K)  # noqa: E741
X = Var("x", TensorType((N, K)))
W = Var("w", TensorType((K, M)))
Y = Var("y", TensorType((N, M)))
S = Var("s", FLOAT)


def var(name: str, type_: Type = INT) -> Var:
    return Var(name, type_)


def at(tensor: Expr, *names: str) -> Index:
    assert isinstance(tensor.type, TensorType)
    type_ = INT if tensor.type.element == "int" else FLOAT
    return Index(tensor, tuple(map(var, names)), type_)


PRODUCT = IndexAssign(at(Y, "i", "j"), "+=", builder.mul(
    at(X, "i", "k"), at(W, "k", "j")), (I, J, L))  # fmt: skip
RELU = Assign(Y, "=", builder.operator("relu", (Y,)))
SQUARE = Function(
    "square", (Param("v", FLOAT, "In"),), (FLOAT,),
    (Return((builder.mul(var("v", FLOAT), var("v", FLOAT)),)),),
)  # fmt: skip
BUMP = Function(
    "bump", (Param("t", TensorType((N,)), "Out"), Param("u", TensorType((N,)), "In")), (),
    (Zero(var("t", TensorType((N,)))),),
)  # fmt: skip
PAIR = Function(
    "pair", (Param("x", X.type, "In"),), (FLOAT, X.type),
    (Return((FloatConst(1.0), X)),),
)  # fmt: skip


def function(*body: Stmt, results: tuple[Type, ...] = (Y.type,), name: str = "f") -> Function:
    params = (
        Param("x", X.type, "In"),
        Param("w", W.type, "In"),
        Param("n", INT, "In"),
        Param("s", FLOAT, "In"),
        Param("g", TensorType((N,)), "Out"),
        Param("c", TensorType((N,), "int"), "In"),
    )
    return Function(name, params, results, (Declare(Y, None), *body, Return((Y,))))


def module(*body: Stmt, extra: tuple[Function, ...] = ()) -> Module:
    return Module("m", (), (SQUARE, BUMP, PAIR, *extra, function(*body)))


def test_well_formed() -> None:
    loop = For("t", N, (Assign(S, "+=", FloatConst(1.0)), Assign(S, "=", var("t"))), True)
    branch = If(Binary("<", S, FloatConst(0.0), INT), (Zero(Y),), (RELU,))
    pad = IndexAssign(
        at(Y, "i", "j"), "=",
        ZeroPad(Index(X, (Binary("-", var("i"), IntConst(1), INT), var("j")), FLOAT)), (I, J),
    )  # fmt: skip
    best = IndexAssign(
        at(Y, "i", "j"), "=",
        Reduce("max", builder.mul(at(X, "i", "k"), at(W, "k", "j")), (L,), FLOAT), (I, J),
    )  # fmt: skip
    scatter = IndexAssign(
        Index(var("g", TensorType((N,))), (at(var("c", TensorType((N,), "int")), "i"),), FLOAT),
        "+=", Call("square", (at(X, "i", "k"),), FLOAT), (I, L),
    )  # fmt: skip
    total = IndexAssign(S, "+=", at(X, "i", "k"), (I, L))
    apart = Unpack(
        (var("a", FLOAT), var("b", X.type)), Call("pair", (X,), TupleType((FLOAT, X.type)))
    )
    verify(module(PRODUCT, RELU, loop, branch, pad, best, scatter, total, apart))


def test_a_derivative_may_be_called_before_it_exists() -> None:
    call = CallStmt(Call("d_square", (S, S, S), FLOAT))
    verify(replace(module(call), derivatives=(Derivative("d_square", "rev_diff", "square"),)))


SHAPED = builder.operator("reshape", (X,), {"shape": [builder.binary("*", N, K)]})
CASES: dict[str, tuple[Stmt, str]] = {
    "undeclared": (Assign(S, "=", var("q", FLOAT)), "'q' is not declared"),
    "type of a variable": (Assign(S, "=", builder.add(FloatConst(2.0), var("n", FLOAT))),
                           "`n` says that it is float, not int"),
    "type of an operation": (Assign(S, "=", Binary("+", var("n"), S, INT)),
                             "says that it is int, not float"),
    "type of a division": (Assign(S, "=", Binary("<", S, S, FLOAT)), "float, not int"),
    "type of a choice": (Assign(S, "=", Select(var("n"), S, var("n"), INT)), "int, not float"),
    "type of minus": (Assign(S, "=", Unary("-", S, INT)), "int, not float"),
    "scalar operation on a tensor": (Assign(S, "=", Binary("+", Y, S, FLOAT)),
                                     "neither int nor float"),
    "In tensor written": (IndexAssign(at(X, "i", "k"), "=", FloatConst(0.0), (I, L)),
                          "'x' (In) may not be written"),
    "size written": (Assign(N, "=", IntConst(1)), "'N' (size) may not be written"),
    "In tensor zeroed": (Zero(X), "'x' (In) may not be written"),
    "axis hides a variable": (IndexAssign(at(Y, "n", "j"), "=", S, (Axis("n", N), J)),
                              "the axis 'n' hides a variable"),
    "axis missing": (IndexAssign(at(Y, "i", "j"), "=", S, (I,)), "'j' is not declared"),
    "axis only on the right": (IndexAssign(at(Y, "i", "j"), "=", at(X, "i", "k"), (I, J, L)),
                               "'=' cannot sum over ['k']"),
    "axis without use": (IndexAssign(at(Y, "i", "j"), "+=", S, (I, J, L)),
                         "no use of an axis among ['k']"),
    "axes in the wrong order": (IndexAssign(at(Y, "i", "j"), "+=", at(X, "i", "k"), (L, I, J)),
                                "do not begin with the target's"),
    "axis twice": (IndexAssign(at(Y, "i", "j"), "=", S, (I, J, I)), "the axis 'i' stands there"),
    "too few subscripts": (IndexAssign(at(Y, "i"), "=", S, (I,)), "1 subscripts for rank 2"),
    "float subscript": (Assign(S, "=", Index(X, (S, N), FLOAT)), "the subscript `s` is no int"),
    "type of an element": (Assign(S, "=", Index(var("c", TensorType((N,), "int")), (N,), FLOAT)),
                           "float, not int"),
    "sum into an element by Assign": (Assign(Index(Y, (N, N), FLOAT), "=", S),
                                      "assigned by an index statement"),
    "'=' into a number": (IndexAssign(S, "=", at(X, "i", "k"), (I, L)), "only '+='"),
    "declaration in a block": (For("t", N, (Declare(var("z", FLOAT), None),)), "inside a block"),
    "declared twice": (Declare(Y, None), "'y' is declared already"),
    "return in a block": (If(var("n"), (Return((Y,)),), ()), "not the last statement"),
    "counter hides": (For("n", N, ()), "the counter 'n' hides a variable"),
    "counter after the loop": (If(var("n"), (For("t", N, ()), Assign(S, "=", var("t"))), ()),
                               "'t' is not declared"),
    "condition": (If(Y, (), ()), "a condition that is no int or float"),
    "sizes differ": (Declare(var("z", TensorType((IntConst(2),))),
                             builder.operator("zeros", (), {"shape": [3]})),
                     "found a value of type Tensor[3], expected Tensor[2]"),
    "rank differs": (Assign(Y, "=", SHAPED), "found a value of type Tensor["),
    "attribute missing": (Assign(Y, "=", Op("softmax", (Y,), (), Y.type)),
                          "'softmax' has the attributes ['dim'], found []"),
    "attribute not normal": (Assign(Y, "=", Op("softmax", (Y,), (("dim", IntConst(-1)),), Y.type)),
                             "not complete"),
    "operator's argument": (Assign(Y, "=", Op("relu", (S,), (), Y.type)), "must be a tensor"),
    "operator's type": (Assign(Y, "=", Op("relu", (X,), (), TensorType((N,)))),
                        "says that it is Tensor[N], not Tensor[N, K]"),
    "unknown operator": (Assign(Y, "=", Op("frobnicate", (Y,), (), Y.type)), "'frobnicate'"),
    "unknown function": (Assign(S, "=", Call("later", (), FLOAT)), "no function 'later' stands"),
    "number of arguments": (Assign(S, "=", Call("square", (S, S), FLOAT)), "takes 1 arguments"),
    "type of an argument": (Assign(S, "=", Call("square", (Y,), FLOAT)), "argument 'v' of"),
    "type of a call": (Assign(S, "=", Call("square", (S,), Y.type)), "the call of 'square'"),
    "call with Out inside": (Assign(S, "=", Call("bump", (var("g", TensorType((N,))),) * 2, FLOAT)),
                             "passed as Out and once more"),
    "Out argument no place": (CallStmt(Call("bump", (builder.operator(
        "zeros", (), {"shape": [N]}), var("g", TensorType((N,)))), FLOAT)), "is no place"),
    "unpack count": (Unpack((var("a", FLOAT),), Call("pair", (X,), TupleType((FLOAT, X.type)))),
                     "not one target for each result"),
    "reduction over nothing": (Assign(S, "=", Reduce("sum", S, (), FLOAT)), "over nothing"),
    "no float": (Assign(S, "=", FloatConst(1)), "1 is no float"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str) -> None:
    stmt, message = CASES[case]
    with pytest.raises(VerificationError) as caught:
        verify(module(stmt))
    assert message in str(caught.value)
    assert "in function 'f'" in str(caught.value) or "f:" in str(caught.value)


def test_module_level() -> None:
    with pytest.raises(VerificationError, match="the function 'g' stands there twice"):
        verify(module(extra=(function(name="g"), function(name="g"))))
    caller = function(Assign(S, "=", Call("g", (S,), FLOAT)), name="a")
    callee = replace(SQUARE, name="g")
    with pytest.raises(VerificationError, match="no function 'g' stands before"):
        verify(module(extra=(caller, callee)))


def test_results() -> None:
    body = (Declare(Y, None), Return((Y, Y)))
    bad = replace(function(), body=body)
    with pytest.raises(VerificationError, match="2 values for 1 results"):
        verify(Module("m", (), (bad,)))
    with pytest.raises(VerificationError, match="ends in a return exactly when"):
        verify(Module("m", (), (replace(bad, body=body[:1]),)))


def test_message_shows_the_statement() -> None:
    with pytest.raises(VerificationError) as caught:
        verify(module(Assign(S, "=", var("q", FLOAT))))
    assert str(caught.value) == "in function 'f', statement `s = q`: 'q' is not declared"
