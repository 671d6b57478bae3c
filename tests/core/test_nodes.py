"""What nodes remember of themselves never shows: in equality, in copies, in other processes."""

import pickle
from typing import get_args

from loma.core.ir import INT, Binary, Call, Expr, IntConst, Node, Var, remembered, replace
from loma.core.sizes import polynomial
from loma.core.walk import _CHILDREN, free_variables, map_children
from loma.errors.spans import Span

X, Y = Var("x", INT), Var("y", INT)


def test_equal_nodes_have_one_hash() -> None:
    one, other = Binary("+", X, Y, INT), Binary("+", X, Y, INT, Span(3, 1, 3, 6))
    hash(one)
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, replace(one, right=X)}) == 2


def test_a_copy_begins_anew() -> None:
    product = Binary("*", X, Y, INT)
    assert free_variables(product) == {"x", "y"}
    assert polynomial(product) == {(X, Y): 1}
    square = replace(product, right=X)
    assert free_variables(square) == {"x"}
    assert polynomial(square) == {(X, X): 1}


def test_what_is_remembered_stays_in_the_process() -> None:
    """Hashes of strings are others there."""
    total = Binary("+", X, Y, INT)
    hash(total), free_variables(total)
    copy = pickle.loads(pickle.dumps(total))
    assert copy == total
    assert not hasattr(copy, "_hash")
    assert not hasattr(copy, "_memo")


def test_it_is_asked_once() -> None:
    asked: list[Node] = []

    @remembered
    def found(node: Node) -> int:
        asked.append(node)
        return len(asked)

    one, other = Binary("+", X, Y, INT), Binary("+", X, Y, INT)
    assert [found(one), found(one), found(other)] == [1, 1, 2]  # each node for itself


def test_a_node_of_the_same_children_is_the_same() -> None:
    total = Binary("+", X, IntConst(1), INT)
    assert map_children(total, lambda child: child) is total
    assert map_children(total, lambda _: Y) == Binary("+", Y, Y, INT)


def test_a_node_with_the_parts_that_it_has_is_the_same() -> None:
    total = Binary("+", X, Y, INT)
    assert replace(total, left=X, right=Y) is total
    assert replace(total, left=Y) == Binary("+", Y, Y, INT)
    assert replace(total, span=Span(3, 1, 3, 6)).span.line == 3  # though they are equal
    call = Call("f", (X, Y), INT)
    assert replace(call, args=tuple(iter(call.args))) is call  # another tuple
    other = Var("x", INT, Span(3, 1, 3, 6))
    assert replace(call, args=(other, Y)).args[0] is other
    assert replace(call, args=(X,)) == Call("f", (X,), INT)


def test_every_expression_is_a_node_whose_children_are_known() -> None:
    assert all(issubclass(kind, Node) for kind in get_args(Expr))
    assert set(get_args(Expr)) == set(_CHILDREN)
