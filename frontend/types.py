"""Annotations to types: scalars, arrays, structs, tensors and the arithmetic of their sizes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable

from loma import errors
from loma.core import sizes
from loma.core.builder import VARYING_SIZE
from loma.core.differentials import differential, primal_name
from loma.core.ir import (
    FLOAT, INT, ArrayType, Binary, Builtin, Element, Expr, IntConst, StackType, StructType,
    TensorType, Type, Unary, Var,
)  # fmt: skip
from loma.core.printer import print_expr, print_type
from loma.core.unbounded import is_unbounded
from loma.core.walk import free_variables, substitute
from loma.errors.spans import Span
from loma.frontend.constants import whole_number
from loma.frontend.scope import Program, Scope, Symbol, span_of
from loma.frontend.syntax.python_syntax import SYMBOLS, elts

_TENSORS: dict[str, Element] = {
    "Tensor": "float", "TorchTensorFloat": "float32", "IntTensor": "int", "BoolTensor": "bool",
}  # fmt: skip
TYPE_NAMES = ("int", "float", "Array", "Diff", *_TENSORS)
# What Python's annotations have.
_ELSEWHERE = {
    "bool": "a truth value is an int, 0 or 1; a tensor of them is BoolTensor[N]",
    "list": "Array[float, 3], or Array[float] for an argument of any length",
    "List": "Array[float, 3], or Array[float] for an argument of any length",
    "dict": "a struct has named members: class Name: ...",
    "str": "programs compute with numbers: int, float, arrays and tensors",
}
# What PyTorch and NumPy call their types, with or without their name in front.
_SIZED = "with a name or number for each size"
_FOREIGN = {
    **dict.fromkeys(
        ("Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "ndarray", "NDArray", "array"),
        "Tensor[N, M]",
    ),
    **dict.fromkeys(("LongTensor", "IntTensor"), "IntTensor[N, M]"),
    "BoolTensor": "BoolTensor[N, M]",
    **dict.fromkeys(("float", "float16", "bfloat16", "float32", "float64", "double"), "float"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "int"),
}
_MODES = ("In[...] and Out[...] stand only around the type of an argument", None)
# What is no type alone, or where types stand.
_NO_TYPE = {
    "Array": ("an Array needs the type of its elements", _ELSEWHERE["list"]),
    "Diff": ("Diff needs the type that it is the differential of", "Diff[float]"),
    "Stack": (
        "a Stack is a local variable only",
        "tape : Stack[float, 100], in the function's outermost block",
    ),
    "In": _MODES,
    "Out": _MODES,
}
# The size of a differential doubles with each level.
MAX_DIFFERENTIAL = 16
MAX_BYTES = 2**62  # of a value
_TYPES = "types are int, float, Array[T], Tensor[N, M], IntTensor[N], BoolTensor[N] and structs"
# What stands for a name in a tensor's sizes; it raises when the name is no size there.
SizeOf = Callable[[ast.Name], Expr]


def instead(node: ast.expr | None) -> str | None:
    """The type that PyTorch's or NumPy's stands for; None where the annotation is no such one."""
    match node:
        case ast.Subscript(value=value):  # NDArray[np.float32]
            return instead(value)
        case ast.Attribute(value=ast.Name() | ast.Attribute(), attr=name):
            return _FOREIGN.get(name)
        case ast.Name(id=name) if name not in TYPE_NAMES:
            return _FOREIGN.get(name)
        case _:
            return None


def explained(type_: str) -> str:
    """A type of :func:`instead` in a hint."""
    return f"{type_}, {_SIZED}" if "Tensor" in type_ else type_


def read_type(node: ast.expr, program: Program, size_of: SizeOf) -> Type:
    """The type that an annotation names. Raises UnknownType."""
    match node:
        case ast.Name(id="int" | "float" as name):
            return INT if name == "int" else FLOAT
        case ast.Name(id=name) if _is_struct(name, span_of(node), program):
            return StructType(name)
        case ast.Name(id=name) if name in _TENSORS:
            return TensorType(None, _TENSORS[name])
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if (
            name in program.tensor_structs
        ):
            raise errors.UnknownType(
                f"'{name}' is a struct with tensors, which cannot stand here", span_of(node),
                hint=f"it is the type of an argument, In[{name}], of a variable or of a result",
            )  # fmt: skip
        case ast.Subscript(value=ast.Name(id="Array"), slice=inner):
            return _array(node, inner, program, size_of)
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _TENSORS:
            return TensorType(tuple(_size(item, size_of) for item in elts(inner)), _TENSORS[name])
        case ast.Subscript(value=ast.Name(id="Diff"), slice=inner):
            return _differential(read_type(inner, program, size_of), span_of(inner), program)
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if name in _NO_TYPE:
            message, hint = _NO_TYPE[name]
            raise errors.UnknownType(message, span_of(node), hint=hint)
        case _ if (meant := instead(node)) is not None:
            raise errors.UnknownType(
                f"'{ast.unparse(node)}' is no type of loma", span_of(node),
                hint=f"write {explained(meant)}",
            )  # fmt: skip
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            hint = _ELSEWHERE.get(name) or errors.suggest(name, [*TYPE_NAMES, *program.structs])
            raise errors.UnknownType(
                f"there is no type '{name}'", span_of(node), hint=hint or _TYPES, var=name
            )
        case _:
            raise errors.UnknownType("this is no type", span_of(node), hint=_TYPES)


def read_stack(node: ast.Subscript, program: Program, size_of: SizeOf) -> StackType:
    """``Stack[T]`` or ``Stack[T, n]``, the type of a local variable."""
    type_ = _array(node, node.slice, program, size_of)
    if is_unbounded(type_.element, program.structs):
        raise errors.DeclareUnboundedArray(
            "an array on a stack needs a size", span_of(node),
            hint="Stack[Array[float, 3]]; an array in a struct needs one as well",
        )  # fmt: skip
    return StackType(type_.element, type_.size)


def read_results(node: ast.expr | None, program: Program, size_of: SizeOf) -> tuple[Type, ...]:
    """The types after ``->``: none, one, or those of ``tuple[...]``."""
    match node:
        case None | ast.Constant(value=None):
            return ()
        case ast.Subscript(value=ast.Name(id="tuple"), slice=inner):
            return tuple(read_type(item, program, size_of) for item in elts(inner))
        case _:
            return (read_type(node, program, size_of),)


def _differential(type_: Type, span: Span, program: Program) -> Type:
    if not is_element(type_):
        raise errors.UnknownType(
            f"Diff takes a type of the scalar layer, found {print_type(type_)}", span,
            hint="tensors keep their types: their derivatives are made with rev_diff",
        )  # fmt: skip
    found = differential(type_)
    check_differential(found, span)
    program.mention(found)
    check_bytes(found, span, program)
    return found


def _is_struct(name: str, span: Span, program: Program) -> bool:
    if primal_name(name, program.structs) is not None:
        check_differential(StructType(name), span)
    return program.struct(name) is not None


def check_differential(type_: Type, span: Span) -> None:
    """Refuses the differential of a differential of a differential ... if there are too many."""
    while isinstance(type_, ArrayType):
        type_ = type_.element
    if isinstance(type_, StructType) and type_.name.startswith("_d" * (MAX_DIFFERENTIAL + 1)):
        raise errors.UnknownType(
            f"a differential has at most {MAX_DIFFERENTIAL} levels: each doubles its size", span
        )


def has_dimensions(type_: Type) -> bool:
    """Whether it is a tensor, and not one that is a single number."""
    return isinstance(type_, TensorType) and type_.dims != ()


def is_element(type_: Type) -> bool:
    """Whether arrays and stacks may have elements of the type: it is one of the scalar layer."""
    while isinstance(type_, ArrayType):
        type_ = type_.element
    return type_ in (INT, FLOAT) or isinstance(type_, StructType)


def _array(node: ast.expr, inner: ast.expr, program: Program, size_of: SizeOf) -> ArrayType:
    """``Array[T]`` or ``Array[T, n]``; also what stands between the brackets of a Stack."""
    items = elts(inner)
    noun = "a Stack" if is_stack(node) else "an Array"
    if len(items) not in (1, 2):
        raise errors.UnknownType(
            f"{noun} has an element type and at most one size", span_of(node),
            hint="nest arrays: Array[Array[float, 3], 4]",
        )  # fmt: skip
    element = read_type(items[0], program, size_of)
    if not is_element(element):
        raise errors.UnknownType(f"the elements of {noun} are no tensors", span_of(items[0]))
    if len(items) == 1:
        return ArrayType(element, None)
    size = whole_number(items[1])
    if size is None or not 0 < size < 2**31:
        raise errors.UnknownType(f"the size of {noun} is a positive constant", span_of(items[1]))
    found = ArrayType(element, size)
    if not is_stack(node):
        check_bytes(found, span_of(node), program)
    return found


def check_bytes(type_: Type, span: Span, program: Program) -> None:
    """Refuses what no memory holds, and C and Python could not even count."""
    if isinstance(type_, TensorType):
        return
    taken = program.layout.bytes(type_, program.structs)
    if taken > MAX_BYTES:
        raise errors.UnknownType(
            f"a value of type {print_type(type_)} takes {taken} bytes, and at most "
            f"{MAX_BYTES} can be counted",
            span,
        )


def is_stack(node: ast.expr) -> bool:
    match node:
        case ast.Subscript(value=ast.Name(id="Stack")):
            return True
        case _:
            return False


def _size(node: ast.expr, size_of: SizeOf) -> Expr:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(value)) if value < 2**63:
            return IntConst(value, span_of(node))
        case ast.Name():
            return size_of(node)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _size(operand, size_of)
            if isinstance(inner, IntConst):
                return IntConst(-inner.value, span_of(node))
            return Unary("-", inner, INT, span_of(node))
        case ast.BinOp(left, op, right) if type(op) in SYMBOLS and not isinstance(
            op, ast.Div | ast.Pow
        ):
            a, b = _size(left, size_of), _size(right, size_of)
            return Binary(SYMBOLS[type(op)], a, b, INT, span_of(node))
        case ast.Call(
            func=ast.Name(id="max" | "min" as name), args=[_, _, *_] as args, keywords=[]
        ):
            of, span = [_size(arg, size_of) for arg in args], span_of(node)
            return functools.reduce(lambda a, b: Builtin(name, (a, b), INT, span), of)
        case ast.Call(
            func=ast.Name(id="len"),
            args=[ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[])],
            keywords=[],
        ) if 0 < len(bounds) <= 3:
            given = [_size(bound, size_of) for bound in bounds]
            start, stop = given[:2] if len(given) > 1 else (IntConst(0), given[0])
            step = given[2] if len(given) == 3 else IntConst(1)
            return Builtin("len", (start, stop, step), INT, span_of(node))
    raise errors.UnknownType(
        "a size is a name, a whole number, or + - * // % max min of sizes", span_of(node)
    )


def check_sizes(type_: Type, span: Span) -> None:
    """Refuses a constant size below zero."""
    for dim in sizes.dims_in(type_):
        value = sizes.constant(dim)
        if value is not None and value < 0:
            raise errors.UnknownType(f"a size cannot be {value}", span)


def size_in_scope(scope: Scope) -> SizeOf:
    """What names mean in the tensor types of a function's body and in its result types."""

    def size_of(node: ast.Name) -> Expr:
        symbol = scope.symbols.get(node.id)
        if symbol is None:
            raise errors.UnknownSizeVariable(
                f"size variable '{node.id}' is bound by no argument", span_of(node),
                hint=errors.suggest(node.id, [s.name for s in scope.symbols.values()
                                              if s.type == INT])
                or f"make it a size of an argument, or an argument: {node.id} : In[int]",
                var=node.id,
            )  # fmt: skip
        return size_value(scope, symbol, span_of(node))

    return size_of


def size_value(scope: Scope, symbol: Symbol, span: Span) -> Expr:
    """The int expression over sizes and In[int] arguments that a name stands for in a type."""
    if symbol.type != INT:
        raise errors.UnknownSizeVariable(
            f"'{symbol.name}' is no int and cannot be a size", span,
            related=((symbol.span, "declared here"),), var=symbol.name,
        )  # fmt: skip
    changed = scope.reassigned.get(symbol.name)
    if symbol.kind == "In" and changed is not None:
        raise errors.UnknownSizeVariable(
            f"'{symbol.name}' is reassigned in this function, so it cannot be a size", span,
            hint="assign to another variable", related=((changed, "reassigned here"),),
            var=symbol.name,
        )  # fmt: skip
    if symbol.kind in ("size", "In"):
        return Var(symbol.name, INT, span)
    if symbol.definition is not None:
        return symbol.definition
    raise errors.UnknownSizeVariable(
        f"'{symbol.name}' is {symbol.describe()}, and a size must be known when the function "
        "is called",
        span,
        hint=_size_hint(symbol),
        related=((symbol.span, "declared here"),),
        var=symbol.name,
    )


def _size_hint(symbol: Symbol) -> str:
    if symbol.kind == "counter":
        return VARYING_SIZE
    return "sizes are made of the arguments' sizes, In[int] arguments and constants"


def fixed_sizes(scope: Scope, expr: Expr) -> Expr:
    """An int expression with variables that are assigned once replaced by their values."""
    values = {
        name: symbol.definition
        for name in free_variables(expr)
        if (symbol := scope.symbols.get(name)) is not None and symbol.definition is not None
    }
    return substitute(expr, values) if values else expr


def check_declarable(scope: Scope, name: str, type_: Type, span: Span) -> None:
    """Refuses a variable whose inferred sizes are not known when the function is called."""
    for dim in sizes.dims_in(type_):
        if not sizes.is_arithmetic(dim):
            raise errors.UnknownSizeVariable(
                f"a size of '{name}' is '{print_expr(dim)}', and sizes are made with "
                "+ - * // % max min",
                span,
                hint="whole division of sizes is '//'",
            )
        for used in sorted(free_variables(dim)):
            symbol = scope.symbols[used]
            if not scope.is_size(used):
                changes = symbol.kind == "In"
                what = "which the function assigns to" if changes else "which is no size variable"
                raise errors.UnknownSizeVariable(
                    f"a size of '{name}' depends on '{used}', {what}",
                    span,
                    hint=_size_hint(symbol),
                    related=((symbol.span, f"'{used}' is declared here"),),
                    var=used,
                )


def size_definition(scope: Scope, name: str, type_: Type, value: Expr) -> Expr | None:
    """The value of an int variable that may stand in a tensor's sizes: assigned once, of sizes."""
    if type_ != INT or value.type != INT or name in scope.reassigned:
        return None
    value = fixed_sizes(scope, value)
    if not sizes.is_arithmetic(value):
        return None
    return value if all(map(scope.is_size, free_variables(value))) else None
