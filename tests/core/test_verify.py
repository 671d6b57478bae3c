"""The verifier accepts what is well formed and names what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loma.core import builder
from loma.core.differentials import DFLOAT_STRUCT
from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, AtomicAdd, Axis, Binary, Builtin, Call, CallStmt, Declare,
    Derivative, Expr, FloatConst, For, Function, If, Index, IndexAssign, IntConst, MakeStruct,
    Member, Module, Op, Param, Pop, Push, Reduce, Return, Select, StackType, Stmt, Struct,
    StructType, TensorType, TupleType, Type, Unary, Unpack, Var, While, Zero, ZeroPad,
)  # fmt: skip
from loma.core.verify import VerificationError, verify

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
    "operator's argument": (Assign(Y, "=", Op("sum_to", (S,), (("shape", (N,)),), Y.type)),
                            "must be a tensor"),
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


# ----------------------------------------------------------------------------- the scalar layer

FOO = Struct("Foo", (("x", FLOAT), ("v", ArrayType(FLOAT, 3))))
DFOO = Struct("_dFoo", (("x", StructType("_dfloat")), ("v", ArrayType(StructType("_dfloat"), 3))))
STRUCTS = (FOO, DFLOAT_STRUCT, DFOO)
F, A = var("foo", StructType("Foo")), var("a", ArrayType(FLOAT, None))
V = Member(F, "v", ArrayType(FLOAT, 3))
T = var("t", StackType(FLOAT, 4))
MAKE = MakeStruct((S, S), StructType("_dfloat"))
EACH = Function(
    "each", (Param("a", A.type, "Out"),), (),
    (Assign(Index(A, (Builtin("thread_id", (), INT),), FLOAT), "=", FloatConst(1.0)),), simd=True,
)  # fmt: skip
SCALAR_PARAMS = (
    Param("foo", StructType("Foo"), "In"),
    Param("s", FLOAT, "In"),
    Param("n", INT, "In"),
    Param("a", A.type, "In"),
    Param("o", A.type, "Out"),
)


def scalar(*body: Stmt, extra: tuple[Function, ...] = ()) -> Module:
    declared = (Declare(T, None), Declare(var("d", StructType("_dfloat")), None))
    main = Function("f", SCALAR_PARAMS, (), (*declared, *body))
    return Module("m", STRUCTS, (EACH, *extra, main))


def test_well_formed_scalar_functions() -> None:
    verify(
        scalar(
            Push(T, S),
            Pop(T, S),
            Pop(T, Index(V, (IntConst(0),), FLOAT)),
            Assign(var("d", StructType("_dfloat")), "=", MAKE),
            Declare(var("w", ArrayType(FLOAT, 3)), V),
            Assign(V, "=", var("w", ArrayType(FLOAT, 3))),
            Zero(V),
            Zero(F),
            AtomicAdd(S, IntConst(1)),
            AtomicAdd(var("n"), IntConst(1)),
        )
    )


STACK_OF_ARRAYS = var("u", StackType(ArrayType(FLOAT, None), None))
SCALAR_CASES: dict[str, tuple[Stmt, str]] = {
    "pushed type": (Push(T, var("n")), "the value is not of the stack's type"),
    "popped type": (Pop(T, var("n")), "the target is not of the stack's type"),
    "pop into what is read only": (Pop(T, Index(A, (IntConst(0),), FLOAT)),
                                   "'a' (In) may not be written"),
    "push on no stack": (Push(S, S), "'s' is no stack"),
    "push on another stack": (Push(var("t", StackType(FLOAT, 5)), S), "says that it is another"),
    "stack as a value": (Assign(S, "=", T), "the stack 't' is used as a value"),
    "stack declared with a value": (Declare(var("u", StackType(FLOAT, 4)), S),
                                    "a stack with an initial value"),
    "stack of arrays without size": (Declare(STACK_OF_ARRAYS, None), "no fixed size"),
    "stack of stacks": (Declare(var("u", StackType(T.type, None)), None),
                        "a stack that is no variable of its own"),
    "stack without room": (Declare(var("u", StackType(FLOAT, 0)), None), "of no capacity"),
    "stack zeroed": (Zero(T), "the stack 't' is used as a value"),
    "local array without size": (Declare(var("b", ArrayType(FLOAT, None)), None),
                                 "a local array without a size"),
    "array without size assigned": (Assign(var("o", A.type), "=", A), "array without a size"),
    "unknown struct": (Declare(var("b", StructType("Goo")), None), "no struct is named 'Goo'"),
    "too few members": (Assign(var("d", StructType("_dfloat")), "=",
                               MakeStruct((S,), StructType("_dfloat"))), "takes 2 arguments"),
    "member that does not fit": (Assign(var("d", StructType("_dfloat")), "=",
                                        MakeStruct((S, F), StructType("_dfloat"))),
                                 "must be float"),
    "member that is an array": (Declare(var("b", StructType("_dFoo")),
                                        MakeStruct((MAKE, V), StructType("_dFoo"))),
                                "member 'v' of '_dFoo' is an array"),
    "thread_id in an ordinary function": (Assign(var("n"), "=", Builtin("thread_id", (), INT)),
                                          "thread_id() outside a simd function"),
    "call of a simd function": (CallStmt(Call("each", (var("o", A.type),), TupleType(()))),
                                "a call of 'each', which is a simd function"),
    "atomic_add to an array": (AtomicAdd(V, S), "atomic_add to no number"),
    "atomic_add of a float to an int": (AtomicAdd(var("n"), S), "of a float to an int"),
    "bound that is not positive": (While(S, 0, ()), "a max_iter that is not positive"),
}  # fmt: skip


@pytest.mark.parametrize("case", SCALAR_CASES)
def test_refused_in_scalar_functions(case: str) -> None:
    stmt, message = SCALAR_CASES[case]
    with pytest.raises(VerificationError) as caught:
        verify(scalar(stmt))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (replace(EACH, name="g", body=(Return((S,)),), results=(FLOAT,)), "with results"),
        (replace(EACH, name="g", params=(Param("x", X.type, "In"),), body=()), "a tensor among"),
        (Function("g", (Param("t", T.type, "In"),), (), ()), "no variable of its own"),
        (Function("g", (), (StructType("Goo"),), (Return((F,)),)), "no struct is named 'Goo'"),
        (Function("g", (), (V.type,), (Return((V,)),)), "an array among the results"),
    ],
)
def test_refused_signatures(function: Function, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(scalar(extra=(function,)))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((("x", FLOAT), ("x", INT)), "the member 'x' stands there twice"),
        ((("x", StructType("Later")),), "the member 'x' has no type for a member"),
        ((("x", T.type),), "the member 'x' has no type for a member"),
    ],
)
def test_refused_structs(members: tuple[tuple[str, Type], ...], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(Module("m", (Struct("G", members), Struct("Later", ())), ()))
    with pytest.raises(VerificationError, match="the struct 'G' stands there twice"):
        verify(Module("m", (Struct("G", ()), Struct("G", ())), ()))
