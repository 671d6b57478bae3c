"""What Python, C++ and the dispatcher see of a function: the rows of the runtime's tables
(runtime/tables.h), the schema of its operator, its C++ declaration, and the record that the Python
callable is made from."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loma.backends.cfamily.names import cpp_string
from loma.backends.torch.codegen import cpp_name
from loma.backends.torch.sizes import bind_row, dim_row
from loma.core.ir import (
    FLOAT, INT, Expr, Function, Module, Param, TensorType, Type, default_values, is_tensor_function,
)  # fmt: skip
from loma.core.names import Names
from loma.core.printer import print_param, print_type
from loma.core.sizes import Binding, bindings
from loma.packed_calls import packed_record

if TYPE_CHECKING:
    from loma.ad.tensor.pairs import SplitPair
    from loma.core.packing import Packings

# By function: positions of parameters that no caller passes, because they start at zero.
Zeroed = Mapping[str, tuple[int, ...]]

# Words that the schema language of torch does not take as the name of an argument.
_RESERVED = {*keyword.kwlist, "inf", "nan", "Tensor", "Ellipsis", "NoneType"}
_SOURCES = {
    "arg": "Argument",
    "result": "Result",
    "saved": "Saved",
    "grad": "Grad",
    "size": "Size",
    "need": "Need",
}


@dataclass(frozen=True, slots=True)
class SplitRow:
    forward: str
    backward: str
    sources: tuple[str, ...]
    differentiable: tuple[str, ...]
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A function as templates/module.cpp.j2 prints it; initialisers are C++ text."""

    number: int
    function: str
    cpp_name: str
    operator: str
    display: str
    comment: str
    schema: str
    size_names: tuple[str, ...]
    dims: tuple[tuple[str, tuple[str, ...]], ...]
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    split: SplitRow | None
    public: bool
    declaration: str
    returned: int
    tensors: tuple[str, ...]
    ints: tuple[str, ...]


# ------------------------------------------------------------------------------ which functions


def refusal(function: Function) -> str | None:
    """Why a function cannot be called through this backend; None when it can."""
    for param in function.params:
        if _kind(param.type) is None:
            return f"takes {print_type(param.type)} for '{param.name}'"
        if param.type == INT and param.mode == "Out" and function.primal is None:
            return f"writes the int '{param.name}'"
    for result in function.results:
        if _kind(result) is None:
            return f"returns {print_type(result)}"
    return None


def _kind(type_: Type) -> str | None:
    match type_:
        case TensorType(_, "int"):
            return "IntTensor"
        case TensorType(_, "bool"):
            return "BoolTensor"
        case TensorType(_, "float32"):
            return "Tensor32"
        case TensorType():
            return "Tensor"
        case _ if type_ == FLOAT:
            return "Float"
        case _ if type_ == INT:
            return "Int"
        case _:
            return None


def _shown(name: str, packings: Packings | None) -> str:
    """What the program calls an argument."""
    return packings.shown.get(name, name) if packings else name


# --------------------------------------------------------------------------------------- slots


def _dims(type_: Type) -> tuple[Expr, ...]:
    return type_.dims or () if isinstance(type_, TensorType) else ()


def _rank(type_: Type) -> int:
    return -1 if isinstance(type_, TensorType) and type_.dims is None else len(_dims(type_))


@dataclass(frozen=True, slots=True)
class _Slots:
    """Where a call keeps its sizes and ints, and which parameter's dimension sets a size."""

    position: dict[str, int]
    binders: dict[tuple[int, int], tuple[str, Binding]]  # (parameter, dimension) → size variable

    @property
    def size_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.binders.values())


def _slots(passed: Sequence[Param]) -> _Slots:
    ints = [param.name for param in passed if param.type == INT]
    bound = bindings(passed)
    binders = {(at.param, at.dim): (name, at) for name, at in bound.items()}
    return _Slots({name: slot for slot, name in enumerate([*bound, *ints])}, binders)


def slot_names(function: Function, zeroed: Collection[int]) -> tuple[str, ...]:
    """The size variables and ints whose values a call has in its slots, in order."""
    passed = [param for k, param in enumerate(function.params) if k not in zeroed]
    return tuple(_slots(passed).position)


# ---------------------------------------------------------------------------------------- rows


def function_rows(
    module: Module, pairs: Sequence[SplitPair], names: Sequence[str], zeroed: Zeroed
) -> tuple[FunctionRow, ...]:
    """A row for each function of ``names`` that this backend can call, and for each split pair's
    halves."""
    backwards = {pair.backward: pair for pair in pairs}
    primals = {pair.primal: pair for pair in pairs}
    shown = {half: pair.primal for pair in pairs for half in (pair.forward, pair.backward)}
    rows: list[FunctionRow] = []
    for function in module.functions:
        if function.name not in (*names, *shown) or not is_tensor_function(function):
            continue
        if refusal(function):
            continue
        pair = primals.get(function.name)
        row = _Row(
            function,
            shown.get(function.name, function.name),
            frozenset(zeroed.get(function.name, ())),
            _needs(backwards.get(function.name)),
            _split(pair) if pair else None,
            module.packings,
        )
        rows.append(row.print(len(rows)))
    return tuple(rows)


def _needs(pair: SplitPair | None) -> dict[int, int]:
    """Of a backward function: result position → position of the int that asks for it."""
    if pair is None:
        return {}
    asked = {source.index: at for at, source in enumerate(pair.sources) if source.kind == "need"}
    return {k: asked[p] for k, p in enumerate(pair.differentiable) if p in asked}


@dataclass(frozen=True, slots=True)
class _Row:
    """What a row is printed from. ``zeroed`` are the positions of parameters that no caller passes,
    ``needs`` leads from a result's position to that of the int that asks for it."""

    function: Function
    display: str
    zeroed: frozenset[int]
    needs: dict[int, int]
    split: SplitRow | None
    packings: Packings | None

    @property
    def passed(self) -> tuple[Param, ...]:
        return tuple(p for k, p in enumerate(self.function.params) if k not in self.zeroed)

    def print(self, number: int) -> FunctionRow:
        function, passed = self.function, self.passed
        name = cpp_name(function.name)
        slots = _slots(passed)
        called = function.primal or function.name
        at = {param.name: k for k, param in enumerate(passed)}
        dims: list[tuple[str, tuple[str, ...]]] = []
        parameters, results = [], []
        for position, param in enumerate(function.params):
            array = f"{name}__dims_{position}"
            dims.append((array, _dim_rows(at.get(param.name, -1), param, slots, called)))
            parameters.append(self._parameter(position, param, array))
        types = (*function.results, *(p.type for p in function.params if p.mode == "Out"))
        for position, type_ in enumerate(types):
            array = f"{name}__result_{position}"
            dims.append(
                (array, tuple(dim_row(dim, slots.position, called) for dim in _dims(type_)))
            )
            asked = self.needs.get(position)
            need = -1 if asked is None else slots.position[function.params[asked].name]
            results.append(_result(type_, array, need))
        tensors = [
            cpp_name(p.name) + (".tensor" if p.type == FLOAT and p.mode == "In" else "")
            for p in passed
            if p.type != INT
        ]
        returned = returned_results(function, self.zeroed)
        return FunctionRow(
            number=number,
            function=function.name,
            cpp_name=name,
            operator=name,
            display=cpp_string(self.display),
            comment=f"{function.name}({', '.join(map(print_param, passed))})",
            schema=_schema(name, passed, len(types)),
            size_names=tuple(map(cpp_string, slots.size_names)),
            dims=tuple(dims),
            parameters=tuple(parameters),
            results=tuple(results),
            split=self.split,
            public=self.display == function.name,
            declaration=_declaration(function, passed, returned),
            returned=returned,
            tensors=tuple(tensors),
            ints=tuple(cpp_name(param.name) for param in passed if param.type == INT),
        )

    def _parameter(self, position: int, param: Param, dims: str) -> str:
        role = "Adjoint" if position in self.zeroed else param.mode
        like = -1
        if role == "Adjoint" and _rank(param.type) < 0:  # the argument stands before its adjoint
            like = max(k for k in range(position) if k not in self.zeroed)
        array = dims if _rank(param.type) > 0 else "nullptr"
        name = cpp_string(_shown(param.name, self.packings))
        return (
            f"{{{name}, loma::Kind::{_kind(param.type)}, loma::Role::{role}, "
            f"{_rank(param.type)}, {array}, {like}}}"
        )


def returned_results(function: Function, zeroed: Collection[int]) -> int:
    """How many values a call gives back: an Out argument that is passed is written instead."""
    return len(function.results) + sum(function.params[k].mode == "Out" for k in zeroed)


def _dim_rows(number: int, param: Param, slots: _Slots, function: str) -> tuple[str, ...]:
    rows = []
    for position, dim in enumerate(_dims(param.type)):
        bound = slots.binders.get((number, position))
        if bound:
            rows.append(bind_row(dim, bound[1], slots.position[bound[0]]))
        else:
            rows.append(dim_row(dim, slots.position, function))
    return tuple(rows)


def _result(type_: Type, dims: str, need: int) -> str:
    array = dims if _rank(type_) > 0 else "nullptr"
    return f"{{loma::Kind::{_kind(type_)}, {_rank(type_)}, {array}, {need}}}"


def _split(pair: SplitPair) -> SplitRow:
    return SplitRow(
        forward=cpp_name(pair.forward),
        backward=cpp_name(pair.backward),
        sources=tuple(
            f"{{loma::Source::Kind::{_SOURCES[source.kind]}, {source.index}, {source.dim}, "
            f"{source.scale}, {source.offset}}}"
            for source in pair.sources
        ),
        differentiable=tuple(map(str, pair.differentiable)),
        entries=tuple(map(str, pair.entries)),
    )


# --------------------------------------------------------------------- schema and declarations


def _schema(name: str, passed: Sequence[Param], results: int) -> str:
    simple = {p.name for p in passed if p.name.isascii() and p.name not in _RESERVED}
    names = Names(simple)
    arguments = []
    for position, param in enumerate(passed):
        label = param.name if param.name in simple else names.fresh(f"argument_{position}")
        arguments.append(f"{'SymInt' if param.type == INT else 'Tensor'} {label}")
    returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    return f"{name}({', '.join(arguments)}) -> {returned}"


def _declaration(function: Function, passed: Sequence[Param], returned: int) -> str:
    def argument(param: Param) -> str:
        name = cpp_name(param.name)
        if param.type == INT:
            return f"int64_t {name}"
        if param.type == FLOAT and param.mode == "In":
            return f"const loma::Real& {name}"
        return f"const at::Tensor& {name}"

    arguments = ", ".join(map(argument, passed))
    result = "void" if returned == 0 else "at::Tensor"
    if returned > 1:
        result = f"std::tuple<{', '.join(['at::Tensor'] * returned)}>"
    return f"{result} {cpp_name(function.name)}({arguments})"


# ------------------------------------------------------------------------------------- records


def record(
    function: Function, zeroed: Collection[int], packings: Packings | None = None
) -> dict[str, Any]:
    """What :mod:`loma.functions` makes the Python callable from, as JSON values."""
    defaults = default_values(function)
    packing = packings.functions.get(function.name) if packings else None
    return {
        "name": function.name,
        "layer": "tensor",
        "operator": cpp_name(function.name),
        "doc": function.doc,
        "refusal": refusal(function),
        "results": returned_results(function, zeroed),
        "result_types": [print_type(result) for result in function.results],
        "adjoints": bool(zeroed),
        **({"packed": packed_record(packing, function, zeroed)} if packing else {}),
        "params": [
            {
                "name": _shown(param.name, packings if packing else None),
                "type": print_type(param.type),
                "kind": _kind(param.type),
                "mode": param.mode,
                **({"default": defaults[param.name]} if param.name in defaults else {}),
            }
            for position, param in enumerate(function.params)
            if position not in zeroed
        ],
    }
