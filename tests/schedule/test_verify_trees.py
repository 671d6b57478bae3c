"""The verifier of trees names what is broken; that it takes what is right, every lowering shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loma.backends.kernels.ir import Kernel, Panels
from loma.backends.schedule import host, ir
from loma.backends.schedule.ir import (
    Accumulator, Check, Compare, Each, Fill, Groups, InPlace, Lanes, Lazy, Let, Loop, Narrow, Node,
    Note, Parallel, Store, StoreLanes, Stretch, Tiles, Total, UpdateLanes, Variable,
)  # fmt: skip
from loma.backends.schedule.verify import VerificationError, verify_tree
from loma.backends.schedule.verify_host import verify_lowered
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Builtin, Expr, FloatConst, For, Function, Index, IntConst, Param,
    Reduce, TensorType, Type, Var,
)  # fmt: skip

ZERO, ONE, HALF = IntConst(0), IntConst(1), FloatConst(0.5)
N, I = Var("n", INT), Var("i", INT)  # noqa: E741
VECTOR = TensorType((N,))
X, Y, Q = Var("x", VECTOR), Var("y", VECTOR), Var("q", VECTOR)
WHOLE_X, WHOLE_Y = host.Operand(X), host.Operand(Y)
S = Var("s", FLOAT)
OUTSIDE = {"x", "y", "n", "s"}


def made(name: str, type_: Type = INT) -> Var:
    return Var(f"@{name}_", type_)


def at(tensor: Var, *offset: Expr) -> Index:
    return Index(tensor, offset or (I,), FLOAT)


def builtin(name: str, *args: Expr) -> Builtin:
    return ir.builtin(name, *args)


STORE = Store(at(Y), "set", at(X))
ACC, BEST = Accumulator(made("acc", FLOAT), "sum", "float"), made("best")
LANES = Lanes(made("lanes", FLOAT), "sum", "float", "sum")
ROW = Lanes(made("row", FLOAT), "sum", "float", "row")
MANY = Lanes(made("many", FLOAT), "sum", "float", "row", grouped=True)
EXTREME = Lanes(made("extreme", FLOAT), "max", "float", "best")
K = Var("k", INT)
TEST = ir.Test(ONE, ZERO, N)
STRETCH = Stretch(made("inside"), (TEST,))
NARROW = Narrow(made("begin"), made("end"), ZERO, N, (TEST,))
INSIDE = Loop(K, NARROW.begin, NARROW.end, ())
AROUND = Loop(K, ZERO, N, (), without=(NARROW.begin, NARROW.end))
CHECK = Check(1, "x", 0, N, "i", 1)


def tree(*body: Node, **new: Any) -> Parallel:
    return replace(Parallel(I, N, ONE, (*body, STORE), (Y,), ()), **new)


def tiles(*body: Node, **new: Any) -> Tiles:
    return replace(Tiles(ZERO, N, "float", body), **new)


def store(value: Expr) -> Parallel:
    return tree(Store(at(Y), "set", value))


def update(lanes: Lanes, load: bool = False) -> UpdateLanes:
    return UpdateLanes(lanes, K, at(X, K), load)


def of(condition: Expr) -> ir.If:
    return ir.If(condition, ())


SUM = Reduce("sum", HALF, (Axis("j", N),), FLOAT)
BROKEN: list[tuple[str, Parallel]] = [
    ("checks are numbered", tree(checks=(replace(CHECK, number=2),))),
    ("nothing writes y", Parallel(I, N, ONE, (), (Y,), ())),
    ("nothing writes @parts_", tree(totals=(S,))),
    ("'z' is not declared", store(Var("z", FLOAT))),
    ("'@a_' is declared already", tree(Let(made("a"), ONE), Let(made("a"), ONE))),
    ("'@a_' is not declared", tree(of(made("a")), Let(made("a"), ONE))),
    ("'@a_' is not declared", tree(Loop(K, ZERO, N, (Let(made("a"), ONE),)), of(made("a")))),
    ("'@a_' is a tensor", tree(Variable(made("a", VECTOR), HALF, "float"))),
    ("'k' is no int", tree(Loop(Var("k", FLOAT), ZERO, N, ()))),
    ("`0.5` is no int", tree(Loop(K, ZERO, HALF, ()))),
    ("`0.5` is no int", tree(count=HALF)),
    ("`x` is no number", store(X)),
    ("a tree has no Reduce", store(SUM)),
    ("no tensor 'q' is known", store(at(Q))),
    ("no tensor '@parts_' is known", tree(Store(at(made("parts", VECTOR)), "set", HALF))),
    ("an element has more than one offset", store(at(X, I, I))),
    ("'@acc_' is of another type", tree(ACC, of(made("acc")))),
    ("'@best_' is no value", tree(Accumulator(BEST, "argmax", "float"), of(BEST))),
    ("an accumulator without a position", tree(ACC, of(builtin(ir.POSITION, ACC.var)))),
    ("'@inside_' is no stretch in scope", tree(of(builtin(ir.WHOLE, STRETCH.var)))),
    ("a test of a lane outside of lanes", tree(
        tiles(STRETCH, of(builtin(ir.IN_STRETCH, STRETCH.var))))),
    ("a stretch of another tile", tree(tiles(STRETCH, tiles(of(builtin(ir.WHOLE, STRETCH.var)))))),
    ("'@ceiling' of 1 arguments", tree(of(builtin(ir.CEILING, ONE)))),
    ("there is no such check", tree(of(builtin(ir.TESTED, I, N, ONE)))),
    ("there is no such check", tree(Note(2), checks=(CHECK,))),
    ("no function '@what'", tree(of(builtin("@what", I)))),
    ("no tests", tree(replace(NARROW, tests=()), INSIDE, AROUND)),
    ("no loops run inside and around", tree(NARROW, AROUND)),
    ("no loops run inside and around", tree(NARROW, INSIDE)),
    ("what is left out is no stretch", tree(Let(NARROW.begin, ONE), Let(NARROW.end, ONE), AROUND)),
    ("that of another range", tree(NARROW, INSIDE, replace(AROUND, low=ONE))),
    ("a constant of another type", tree(Let(made("a"), HALF))),
    ("a value of another type", tree(Lazy(made("a"), (), HALF))),
    ("no reduction 'set' of that type", tree(replace(ACC, kind="set"))),
    ("no reduction 'argmax' of that type", tree(replace(LANES, kind="argmax"))),
    ("'@a_' may not be written", tree(Let(made("a"), ONE), Store(made("a"), "set", ONE))),
    ("independent iterations share it", tree(
        ACC, Loop(K, ZERO, N, (Store(ACC.var, "sum", HALF),), "vector"))),
    ("independent iterations share it", tree(
        LANES, Loop(K, ZERO, N, (tiles(update(LANES)),), "vector"))),
    ("it takes 'sum'", tree(ACC, Store(ACC.var, "prod", HALF))),
    ("positions", tree(Accumulator(BEST, "argmax", "float"), Store(BEST, "argmax", HALF))),
    ("no accumulator", tree(Store(at(Y), "argmax", HALF, I))),
    ("'x' is not among what the tree writes", tree(Store(at(X), "set", HALF))),
    ("more are left than a group has", tree(Groups(ZERO, N, 4, 4, ()))),
    ("groups in a group", tree(Groups(ZERO, N, 4, None, (Groups(ZERO, N, 4, None, ()),)))),
    ("no group is around", tree(Each(K, ()))),
    ("no group is around", tree(tiles(grouped=True))),
    ("no group is around", tree(tiles(MANY))),
    ("a row outside of tiles", tree(ROW)),
    ("no row of that kind", tree(tiles(ROW, Fill(ROW, "prod")))),
    ("no row of that kind", tree(LANES, tiles(Fill(LANES, "sum")))),
    ("no tile is around", tree(LANES, update(LANES))),
    ("lanes that compare are loaded", tree(EXTREME, tiles(update(EXTREME)))),
    ("lanes that do not compare", tree(LANES, tiles(Compare(LANES, None)))),
    ("positions", tree(EXTREME, tiles(Compare(EXTREME, I)))),
    ("parts of one result", tree(LANES, tiles(StoreLanes(LANES, K, at(Y, K))))),
    ("these are other lanes", tree(LANES, tiles(update(replace(LANES, kind="prod"))))),
    ("these lanes belong to other tiles", tree(tiles(ROW, tiles(update(ROW))))),
    ("these lanes belong to other tiles", tree(LANES, tiles(tiles(update(LANES))))),
    ("tiles of another type", tree(LANES, tiles(update(LANES), dtype="int"))),
    ("not one value of the group", tree(
        Groups(ZERO, N, 4, None, (tiles(MANY, update(MANY), grouped=True),)))),
    ("a row has no total", tree(tiles(ROW, Total(made("a", FLOAT), ROW)))),
    ("before all tiles are done", tree(LANES, tiles(Total(made("a", FLOAT), LANES)))),
    ("a stretch outside of tiles", tree(STRETCH)),
]  # fmt: skip


def test_well_formed() -> None:
    grouped = tiles(MANY, Fill(MANY, "sum"), Each(K, (StoreLanes(MANY, I, at(Y, I)),)))
    body: list[Node] = [
        ACC, Loop(K, ZERO, N, (Store(ACC.var, "sum", at(X, K)),)),
        LANES, tiles(STRETCH, of(builtin(ir.WHOLE, STRETCH.var)), update(LANES)),
        Total(made("a", FLOAT), LANES), Store(at(Y), "set", made("a", FLOAT)),
        EXTREME, tiles(update(EXTREME, load=True), Compare(EXTREME, None)),
        NARROW, INSIDE, AROUND, Note(1),
    ]  # fmt: skip
    verify_tree(tree(*body, checks=(CHECK,)), OUTSIDE.__contains__)
    inner = Groups(ZERO, N, 4, None, (replace(grouped, grouped=True),))
    verify_tree(InPlace((inner,), (Y,)), {*OUTSIDE, "i"}.__contains__)


@pytest.mark.parametrize(("message", "broken"), BROKEN)
def test_broken_loops(message: str, broken: Parallel) -> None:
    with pytest.raises(VerificationError) as error:
        verify_tree(broken, OUTSIDE.__contains__)
    assert message in str(error.value)


# -------------------------------------------------------------------------- around the loops

FUNCTION = Function(
    "f", (Param("x", VECTOR, "In"), Param("y", VECTOR, "Out"), Param("s", FLOAT, "In")), (), ()
)
LOOPS, PLACE = tree(), InPlace((replace(STORE, place=at(Y, ZERO), value=HALF),), (Y,))
LOOP = For("t", N, ())
KERNEL = Kernel(Axis("b", N), (), frozenset(), (), ())
LAUNCH = host.Launch(KERNEL, ONE, (), (), (), (), (LOOPS,), frozenset({"y"}))
RANGE = host.CheckRange("x", 0, N, "i", 1)
IMAGE, WINDOW = host.Arranged(X, (-1, 0, -1, -1, -1)), host.Meeting("u", "v", 1, 1, ZERO)
CELLS = Var("@cells_", TensorType((N, N), "int"))
PIECE = host.Piece(X, Var("@part_", VECTOR), 1, ONE)
PANELS = Panels(
    Axis("b", N), Var("b_count", INT), Var("b_first", INT), (), (("x", 0),), (), (), (),
    (Assign(Y, "=", X),),
)  # fmt: skip

BROKEN_AROUND: list[tuple[str, host.HostNode]] = [
    ("q not declared", host.Run(Assign(S, "=", at(Q, ZERO)))),
    ("q not declared", host.Clear(Q)),
    ("a number that is no int", host.Count(LOOP, HALF, ())),
    ("'x' is declared already", host.Reserve(X)),
    ("'s' is no tensor", host.Clear(S)),
    ("'y' is not among what may be written here", host.Serial(LOOP, (PLACE,), frozenset())),
    ("'y' is not among what may be written here", replace(LAUNCH, writes=frozenset())),
    ("s hides a variable", host.Count(For("s", N, ()), N, ())),
    ("no order of dimensions", host.Permute(Q, X, (0, 1))),
    ("'y' has another rank", host.Contract(WHOLE_Y, WHOLE_X, WHOLE_X, "a,b->ab")),
    ("loops on other threads", host.Serial(LOOP, (LOOPS,), frozenset({"y"}))),
    ("inside of a loop", replace(LAUNCH, body=(host.Permute(Q, X, (0,)),))),
    ("inside of a loop", host.Serial(LOOP, (LAUNCH,), frozenset({"y"}))),
    ("a statement that has a node of its own", host.Run(LOOP)),
    ("a reduction has a node of its own", host.Run(Assign(S, "=", SUM))),
    ("nothing has reserved 'y'", host.Allocate(Y, True)),
    ("an index and a subscript at once", replace(RANGE, rest=ONE, terms=(), extent=N)),
    ("half an interval", replace(RANGE, rest=ONE)),
    ("not one cell", host.CheckOnce(CELLS, (), (("i", N),), (), "", "", 1, ())),
    ("one or two dimensions of space", host.Convolve(IMAGE, IMAGE, IMAGE, (), False)),
    ("not all dimensions of 'x'", host.Convolve(IMAGE, IMAGE, IMAGE, (WINDOW,), False)),
    ("a life that ends before it", replace(LAUNCH, buffers=(host.Buffer(Q, 2, 1),))),
    ("pieces without blocks", replace(LAUNCH, pieces=(PIECE,))),
    ("no such dimension", replace(
        LAUNCH, kernel=replace(KERNEL, count=Var("b_count", INT)), pieces=(PIECE,))),
    ("panels that are apart share y", host.Stream(
        PANELS, (), (), 1, 1, (replace(PIECE, dim=0),), (), (), apart=True)),
    ("'z' is not declared", store(Var("z", FLOAT))),
]  # fmt: skip


@pytest.mark.parametrize(("message", "broken"), BROKEN_AROUND)
def test_broken_nodes(message: str, broken: host.HostNode) -> None:
    with pytest.raises(VerificationError) as error:
        verify_lowered(FUNCTION, (broken,))
    assert message in str(error.value)


def test_scopes() -> None:
    branch = host.Permute(Q, X, (0,))
    verify_lowered(FUNCTION, (LAUNCH, LOOPS, host.Count(LOOP, N, (branch,)), host.Reserve(Q)))
    with pytest.raises(VerificationError, match="q not declared"):
        verify_lowered(FUNCTION, (host.Count(LOOP, N, (branch,)), host.Clear(Q)))
