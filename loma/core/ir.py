"""The intermediate representation: one small language for programs and their derivatives.

Everything is an immutable dataclass with tuples inside; a node has its type from the moment it is
made (use :mod:`loma.core.builder` to make expressions). Source spans never take part in equality,
so two modules are equal exactly when they print alike. What is asked of a node often, it remembers.

Two layers share these nodes. The scalar layer has ``int``, ``float``, arrays and structs; the
tensor layer adds tensors with named sizes, index statements (loop nests written as one
assignment) and tensor operators, whose meaning is a row in :mod:`loma.core.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, wraps
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, TypeVarTuple

from loma.core.packing import Packings
from loma.errors.spans import NOWHERE, Span

if TYPE_CHECKING:
    from loma.errors import UserWarning

# ----------------------------------------------------------------------------------------- nodes

Class = TypeVar("Class", bound="type[Node]")
Of = TypeVar("Of", bound="Node")
Found = TypeVar("Found")
Rest = TypeVarTuple("Rest")


class Node:
    """A frozen node, with room for its hash and for what functions found of it. Neither is a field:
    copies with other parts, and those that another process reads, begin anew."""

    __slots__ = ("_hash", "_memo")

    _hash: int
    _memo: dict[object, Any]

    def __init_subclass__(cls) -> None:
        # ``dataclass`` makes the class that has slots from one that has its fields already.
        if "__slots__" in vars(cls) and "__dataclass_fields__" in vars(cls):
            cls.__init__ = _initialiser(cls)  # type: ignore[method-assign]


def _initialiser(cls: type) -> Callable[..., None]:
    """What sets the fields by their slots: a frozen dataclass's own goes through
    ``object.__setattr__``, which looks each up. Most of what a compiler does is making nodes."""
    known: dict[str, object] = {}
    parameters: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for part in fields(cls):
        name = part.name
        known[f"_set_{name}"] = getattr(cls, name).__set__
        lines.append(f"    _set_{name}(self, {name})\n")
        text = name
        if part.default is not MISSING:
            known[f"_default_{name}"] = part.default
            text += f"=_default_{name}"
        (named if part.kw_only else parameters).append(text)
    told = ["self", *parameters, *(["*", *named] if named else [])]
    exec(f"def __init__({', '.join(told)}):\n{''.join(lines)}", known)
    made: Callable[..., None] = known["__init__"]  # type: ignore[assignment]
    return made


def hashed_once(cls: Class) -> Class:
    """A dataclass whose nodes keep their hash: that of a tree takes a walk of all of it."""
    compared = attrgetter(
        *(part.name for part in fields(cls) if part.compare and part.hash is not False)  # type: ignore[arg-type]
    )

    def __hash__(self: Node) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash(compared(self))
            object.__setattr__(self, "_hash", value)
            return value

    cls.__hash__ = __hash__  # type: ignore[method-assign, assignment]
    return cls


def remembered(function: Callable[[Of, *Rest], Found]) -> Callable[[Of, *Rest], Found]:
    """A function of a node, and of nothing else but the ``rest`` of its arguments, that is computed
    once for each. Nobody changes its result."""

    @wraps(function)
    def found(node: Of, *rest: *Rest) -> Found:
        key = (function, rest) if rest else function
        try:
            return node._memo[key]  # type: ignore[no-any-return]
        except AttributeError:
            object.__setattr__(node, "_memo", {})
        except KeyError:
            pass
        value = node._memo[key] = function(node, *rest)
        return value

    return found


if TYPE_CHECKING:
    from dataclasses import replace as replace  # whose arguments a type checker knows
else:

    def replace(node, **parts):
        """The node with other parts: itself, with all that is remembered of it, if they are its own
        already, or tuples of the same. Most passes find nothing to do in most statements."""
        for name, new in parts.items():
            old = getattr(node, name)
            if old is not new and not _are_same(old, new):
                own = {name: getattr(node, name) for name in _names(type(node))}
                return type(node)(**own | parts)
        return node

    def _are_same(old, new):
        tuples = type(old) is tuple is type(new) and len(old) == len(new)
        return tuples and all(map(is_, old, new))

    @cache
    def _names(cls):
        return tuple(field.name for field in fields(cls))


# ----------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True)
class IntType:
    pass


@dataclass(frozen=True, slots=True)
class FloatType:
    pass


@dataclass(frozen=True, slots=True)
class ArrayType:
    """``Array[element, size]``; ``size`` is None for an array argument of any length."""

    element: Type
    size: int | None


@dataclass(frozen=True, slots=True)
class StructType:
    name: str


@dataclass(frozen=True, slots=True)
class StackType:
    """``Stack[element, capacity]``: a local stack, empty at first; the tape of reverse mode.

    ``capacity`` is None where no bound on the number of elements is known.
    """

    element: Type
    capacity: int | None


Element: TypeAlias = Literal["float", "float32", "int", "bool"]


@hashed_once
@dataclass(frozen=True, slots=True)
class TensorType(Node):
    """``Tensor[dims]``; ``dims`` are int expressions over sizes, or None for any rank.

    ``element`` is "float" (the floating dtype of the call), "float32" (``TorchTensorFloat``),
    "int" (``IntTensor``, int64) or "bool" (``BoolTensor``, whose elements are the ints 0 and 1);
    the last two are never differentiated.
    """

    dims: tuple[Expr, ...] | None
    element: Element = "float"

    @property
    def integer(self) -> bool:
        """Whether its elements are ints."""
        return self.element in ("int", "bool")


@dataclass(frozen=True, slots=True)
class TupleType:
    """The result of a call that returns several values; never the type of a variable."""

    items: tuple[Type, ...]


Type: TypeAlias = IntType | FloatType | ArrayType | StructType | StackType | TensorType | TupleType
INT = IntType()
FLOAT = FloatType()

# ----------------------------------------------------------------------------------- expressions

BinaryOp: TypeAlias = Literal[
    "+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or"
]
ReduceKind: TypeAlias = Literal["sum", "max", "min", "prod", "argmax", "argmin"]
POSITIONS = ("argmax", "argmin")  # reductions whose value is a place, an int
OF_NOTHING = {"sum": 0, "prod": 1}  # the other reductions have no value of no elements


@hashed_once
@dataclass(frozen=True, slots=True)
class Axis(Node):
    """An index of an index statement or a reduction: it runs over ``range(extent)``."""

    name: str
    extent: Expr


@dataclass(frozen=True, slots=True)
class IntConst(Node):
    value: int
    span: Span = field(default=NOWHERE, compare=False)

    type: ClassVar[Type] = INT


@dataclass(frozen=True, slots=True, eq=False)
class FloatConst(Node):
    """Equal to another one of the same value and sign: 0.0 and -0.0 are two."""

    value: float
    span: Span = field(default=NOWHERE, compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FloatConst) and self._signed() == other._signed()

    def __hash__(self) -> int:
        return hash(self._signed())

    def _signed(self) -> tuple[float, float]:
        return self.value, math.copysign(1.0, self.value)

    type: ClassVar[Type] = FLOAT


@hashed_once
@dataclass(frozen=True, slots=True)
class Var(Node):
    """A variable, an argument, a size variable, a loop counter, or the value of an index."""

    name: str
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Index(Node):
    """``base[subscripts]``: one element. A tensor takes all its subscripts at once."""

    base: Expr
    subscripts: tuple[Expr, ...]
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def tensor(self) -> Var:
        """The variable whose element it is, in an index statement."""
        assert isinstance(self.base, Var)
        return self.base


@hashed_once
@dataclass(frozen=True, slots=True)
class Member(Node):
    base: Expr
    name: str
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Unary(Node):
    """Scalar ``-x`` and ``not x``."""

    op: Literal["-", "not"]
    operand: Expr
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Binary(Node):
    """A scalar operation, in float if an operand is; comparisons, ``and`` and ``or`` are ints."""

    op: BinaryOp
    left: Expr
    right: Expr
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Select(Node):
    """``then if cond else other``: the branch that is not taken is not evaluated. ``eager``: it may
    be, as a kernel does where that is quicker."""

    cond: Expr
    then: Expr
    other: Expr
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)
    eager: bool = field(default=False, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Builtin(Node):
    """A built-in scalar function of :data:`loma.core.builtins.BUILTINS` (``sin``, ``max``, ...)."""

    name: str
    args: tuple[Expr, ...]
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Call(Node):
    """A call of a function of the module: scalar or tensor, one result or a tuple of them."""

    function: str
    args: tuple[Expr, ...]
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class MakeStruct(Node):
    """``make_S(...)``: a struct ``S`` of its members' values, in order; no member is an array.

    Every differential type has one: ``make__dfloat(val, dval)``.
    """

    args: tuple[Expr, ...]
    type: StructType = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Op(Node):
    """A tensor operator of :data:`loma.core.ops.OPS`, infix arithmetic on tensors included.

    ``args`` are the tensors (scalars where the operator takes them); ``attrs`` holds every
    attribute of the operator, defaults filled in, in the table's order. An attribute's value is an
    int expression or a tuple of them.
    """

    name: str
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, Attr], ...]
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Reduce(Node):
    """``sum(body for i in ... for j in ...)`` inside an index statement.

    ``argmax`` and ``argmin`` give the flat position (the last axis runs fastest) of the first
    largest or smallest element, as an int.
    """

    kind: ReduceKind
    body: Expr
    axes: tuple[Axis, ...]
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class ZeroPad(Node):
    """``zero_pad(X[...])``: the element, or zero where a subscript leaves the tensor."""

    read: Index
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> Type:
        return self.read.type


@hashed_once
@dataclass(frozen=True, slots=True)
class NoDiff(Node):
    """``no_diff(expr)``: the value, through which no derivative passes."""

    operand: Expr
    type: Type = field(hash=False)
    span: Span = field(default=NOWHERE, compare=False)


Expr: TypeAlias = (
    IntConst | FloatConst | Var | Index | Member | Unary | Binary | Select | Builtin | Call
    | MakeStruct | Op | Reduce | ZeroPad | NoDiff
)  # fmt: skip
Attr: TypeAlias = Expr | tuple[Expr, ...]
Place: TypeAlias = Var | Index | Member

# ------------------------------------------------------------------------------------ statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered(Node):
    """A statement; ``number`` tells it from equal ones, once :func:`loma.core.walk.numbered` has
    given it one, and stays when a part of it is replaced."""

    number: int = field(default=0, compare=False, repr=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Declare(Numbered):
    """``x : T`` (all zero) or ``x : T = value``; in the outermost block, once per name."""

    target: Var
    value: Expr | None
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Assign(Numbered):
    """Whole-value assignment to a variable, an array element or a struct member.

    Arrays and structs are copied; ``+=`` is for numbers (and tensors). For a tensor variable the
    value is a tensor expression (an operator, a call, another variable).
    """

    target: Place
    op: Literal["=", "+="]
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class IndexAssign(Numbered):
    """An index statement: for every point of ``axes``, ``target op value``.

    ``target`` is a tensor element, or a float variable under ``+=``. Axes are the target's in
    order of first appearance, then those that ``+=`` sums over. ``distinct``: another statement has
    checked that no element is named twice, as that of a derivative's function has.
    """

    target: Index | Var
    op: Literal["=", "+="]
    value: Expr
    axes: tuple[Axis, ...]
    span: Span = field(default=NOWHERE, compare=False)
    distinct: bool = field(default=False, compare=False)

    @property
    def element(self) -> Index:
        """The target, where it is no variable."""
        assert isinstance(self.target, Index)
        return self.target


@hashed_once
@dataclass(frozen=True, slots=True)
class Unpack(Numbered):
    """``a, b = f(x)``: takes a call with several results apart."""

    targets: tuple[Var, ...]
    call: Call
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Zero(Numbered):
    """``zero(x)``: sets a place of any type to all zero. Only a backend knows how."""

    target: Place
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class If(Numbered):
    cond: Expr
    then: tuple[Stmt, ...]
    other: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class For(Numbered):
    """``for counter in range(extent)``, or ``in reversed(range(extent))``."""

    counter: str
    extent: Expr
    body: tuple[Stmt, ...]
    backwards: bool = False
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class While(Numbered):
    cond: Expr
    max_iter: int
    body: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Push(Numbered):
    """``stack.push(value)``."""

    stack: Var
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Pop(Numbered):
    """``target = stack.pop()``: takes the value that was pushed last."""

    stack: Var
    target: Place
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class AtomicAdd(Numbered):
    """``atomic_add(target, value)``: ``target += value`` on a number, safe between work items."""

    target: Place
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class CallStmt(Numbered):
    """A call of a function without results, for its ``Out`` arguments."""

    call: Call
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Return(Numbered):
    values: tuple[Expr, ...]
    span: Span = field(default=NOWHERE, compare=False)


Stmt: TypeAlias = (
    Declare
    | Assign
    | IndexAssign
    | Unpack
    | Zero
    | Push
    | Pop
    | AtomicAdd
    | If
    | For
    | While
    | CallStmt
    | Return
)

# ------------------------------------------------------------------------- functions and modules


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    type: Type
    mode: Literal["In", "Out"]
    span: Span = field(default=NOWHERE, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Function(Node):
    """A function. ``results`` is empty for one called as a statement.

    The body of a ``simd`` function runs once for each work item, whose number is ``thread_id()``;
    the host says how many there are.

    ``primal`` names the function that this one is the reverse derivative of; such a function's
    ``Out`` arguments are left out when Python calls it, and come back as a tuple. Those in
    ``used_up`` are no results: adjoints of the primal's ``Out`` arrays, which it turns into those
    of what the arrays held before. A caller wants these only if they are in ``given_back``, because
    the array was an adjoint that the primal used up. ``half`` says which part of ``primal`` under
    autograd the function is (:mod:`loma.ad.tensor.split`). ``defaults`` are the values of the last
    parameters where a call leaves these out. ``tangent_of`` names the tensor function that this one
    is the forward derivative of, and ``derivative_of`` the function whose reverse derivative this
    is because the program says so (``@derivative(f)``).
    """

    name: str
    params: tuple[Param, ...]
    results: tuple[Type, ...]
    body: tuple[Stmt, ...]
    simd: bool = False
    doc: str = field(default="", compare=False)
    span: Span = field(default=NOWHERE, compare=False)
    primal: str | None = field(default=None, compare=False)
    half: Literal["", "forward", "backward"] = field(default="", compare=False)
    defaults: tuple[IntConst | FloatConst, ...] = ()
    used_up: tuple[str, ...] = field(default=(), compare=False)
    given_back: tuple[str, ...] = field(default=(), compare=False)
    tangent_of: str | None = field(default=None, compare=False)
    derivative_of: str | None = None


@dataclass(frozen=True, slots=True)
class Struct:
    name: str
    members: tuple[tuple[str, Type], ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Derivative:
    """A request at module level: ``name = rev_diff(of)`` or ``name = fwd_diff(of)``."""

    name: str
    mode: Literal["rev_diff", "fwd_diff"]
    of: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Module:
    """A program. Functions stand in an order in which callees come before callers."""

    name: str = field(compare=False)
    structs: tuple[Struct, ...]
    functions: tuple[Function, ...]
    derivatives: tuple[Derivative, ...] = ()
    source: str = field(default="", compare=False)
    path: str = field(default="<text>", compare=False)
    warnings: tuple[UserWarning, ...] = field(default=(), compare=False)
    packings: Packings | None = field(default=None, compare=False)  # None: no structs with tensors

    def function(self, name: str) -> Function:
        """The function of that name; KeyError when there is none."""
        return {function.name: function for function in self.functions}[name]


def default_values(function: Function) -> dict[str, int | float]:
    """The values of arguments that a call may leave out."""
    last = function.params[len(function.params) - len(function.defaults) :]
    return {p.name: d.value for p, d in zip(last, function.defaults, strict=True)}


def is_tensor_function(function: Function) -> bool:
    """Whether the function belongs to the tensor layer: a tensor among its arguments or results."""
    types = [param.type for param in function.params] + list(function.results)
    return any(isinstance(t, TensorType) for t in types)
