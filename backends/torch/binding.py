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
    remembered,
)  # fmt: skip
from loma.core.names import Names
from loma.core.printer import print_param, print_type
from loma.core.sizes import bindings, dims_in
from loma.packed_calls import packed_record

if TYPE_CHECKING:
    from loma.core.saving import SplitPair
    from loma.core.packing import Packings

# By function: positions of parameters that no caller passes, because they start at zero.
Zeroed = Mapping[str, tuple[int, ...]]

# Words that the schema language of torch does not take as the name of an argument.
_RESERVED = {*keyword.kwlist, "inf", "nan", "Tensor", "Ellipsis", "NoneType"}

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


def _rank(type_: Type) -> int:
    return -1 if isinstance(type_, TensorType) and type_.dims is None else len(dims_in(type_))


def slot_names(function: Function, zeroed: Collection[int]) -> tuple[str, ...]:
    """The size variables and ints whose values a call has in its slots, in order."""
    return _slot_names(function, frozenset(zeroed))


@remembered
def _slot_names(function: Function, zeroed: frozenset[int]) -> tuple[str, ...]:
    passed = [param for k, param in enumerate(function.params) if k not in zeroed]
    return (*bindings(passed), *(param.name for param in passed if param.type == INT))


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
        row = FunctionRow(
            len(rows),
            function,
            shown.get(function.name, function.name),
            frozenset(zeroed.get(function.name, ())),
            _needs(backwards.get(function.name)),
            primals.get(function.name),
            module.packings,
        )
        rows.append(row)
    return tuple(rows)


def interface(rows: Sequence[FunctionRow]) -> list[str]:
    """What a graph depends on that has operators of split pairs in it, as text."""
    parts: list[str] = []
    for row in rows:
        shapes = [dim for name, dims in row.dims for dim in (name, *dims)]
        entries = map(str, row.pair.entries) if row.pair else ()
        parts += [row.name, row.schema, *shapes, *row.results, *row.sources, *entries]
    return parts


def _needs(pair: SplitPair | None) -> dict[int, int]:
    """Of a backward function: result position → position of the int that asks for it."""
    if pair is None:
        return {}
    asked = {source.index: at for at, source in enumerate(pair.sources) if source.kind == "need"}
    return {k: asked[p] for k, p in enumerate(pair.differentiable) if p in asked}


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A function as templates/module.cpp.j2 prints it, number ``number`` of the table. What it
    gives is C++ text.

    Messages call it ``shown``. ``zeroed`` are the positions of parameters that no caller passes,
    ``needs`` leads from a result's position to that of the int that asks for it, ``pair`` is what
    autograd runs for it.
    """

    number: int
    function: Function
    shown: str
    zeroed: frozenset[int]
    needs: dict[int, int]
    pair: SplitPair | None
    packings: Packings | None

    @property
    def name(self) -> str:
        return cpp_name(self.function.name)

    @property
    def display(self) -> str:
        return cpp_string(self.shown)

    @property
    def public(self) -> bool:
        return self.shown == self.function.name

    @property
    def passed(self) -> tuple[Param, ...]:
        return tuple(p for k, p in enumerate(self.function.params) if k not in self.zeroed)

    @property
    def comment(self) -> str:
        return f"{self.function.name}({', '.join(map(print_param, self.passed))})"

    @property
    def size_names(self) -> list[str]:
        return [cpp_string(name) for name in bindings(self.passed)]

    @property
    def slots(self) -> dict[str, int]:
        names = slot_names(self.function, self.zeroed)
        return {name: slot for slot, name in enumerate(names)}

    @property
    def result_types(self) -> tuple[Type, ...]:
        """Of the operator, which gives final values, too."""
        written = (param.type for param in self.function.params if param.mode == "Out")
        return (*self.function.results, *written)

    @property
    def dims(self) -> list[tuple[str, list[str]]]:
        """The arrays of dimensions, of parameters and of results."""
        return [
            *((self._array("dims", k), self._param_dims(param))
              for k, param in enumerate(self.function.params)),
            *((self._array("result", k), [self._dim(dim) for dim in dims_in(type_)])
              for k, type_ in enumerate(self.result_types)),
        ]  # fmt: skip

    def _array(self, kind: str, position: int) -> str:
        return f"{self.name}__{kind}_{position}"

    def _dim(self, dim: Expr) -> str:
        return dim_row(dim, self.slots, self.function.primal or self.function.name)

    def _param_dims(self, param: Param) -> list[str]:
        passed = self.passed
        bound = {
            at.dim: bind_row(dims_in(param.type)[at.dim], at, self.slots[size])
            for size, at in bindings(passed).items()
            if passed[at.param] is param
        }
        return [bound.get(k) or self._dim(dim) for k, dim in enumerate(dims_in(param.type))]

    @property
    def parameters(self) -> list[str]:
        return [self._parameter(k, param) for k, param in enumerate(self.function.params)]

    def _parameter(self, position: int, param: Param) -> str:
        role = "Adjoint" if position in self.zeroed else param.mode
        like = -1
        if role == "Adjoint" and _rank(param.type) < 0:  # the argument stands before its adjoint
            like = max(k for k in range(position) if k not in self.zeroed)
        name = cpp_string(_shown(param.name, self.packings))
        array = self._array("dims", position)
        return (
            f"{{{name}, loma::Kind::{_kind(param.type)}, loma::Role::{role}, "
            f"{_ranked(param.type, array)}, {like}}}"
        )

    @property
    def results(self) -> list[str]:
        rows = []
        for position, type_ in enumerate(self.result_types):
            asked = self.needs.get(position)
            need = -1 if asked is None else self.slots[self.function.params[asked].name]
            ranked = _ranked(type_, self._array("result", position))
            rows.append(f"{{loma::Kind::{_kind(type_)}, {ranked}, {need}}}")
        return rows

    @property
    def halves(self) -> tuple[str, ...]:
        """The operators of the split pair."""
        return (cpp_name(self.pair.forward), cpp_name(self.pair.backward)) if self.pair else ()

    @property
    def sources(self) -> list[str]:
        return [
            f"{{loma::Source::Kind::{'Argument' if s.kind == 'arg' else s.kind.capitalize()}, "
            f"{s.index}, {s.dim}, {s.scale}, {s.offset}}}"
            for s in (self.pair.sources if self.pair else ())
        ]

    @property
    def schema(self) -> str:
        """Of the operator, behind its name."""
        simple = {p.name for p in self.passed if p.name.isascii() and p.name not in _RESERVED}
        names = Names(simple)
        arguments = []
        for position, param in enumerate(self.passed):
            label = param.name if param.name in simple else names.fresh(f"argument_{position}")
            arguments.append(f"{'SymInt' if param.type == INT else 'Tensor'} {label}")
        count = len(self.result_types)
        returned = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"({', '.join(arguments)}) -> {returned}"

    @property
    def returned(self) -> int:
        return returned_results(self.function, self.zeroed)

    @property
    def declaration(self) -> str:
        def argument(param: Param) -> str:
            name = cpp_name(param.name)
            if param.type == INT:
                return f"int64_t {name}"
            if param.type == FLOAT and param.mode == "In":
                return f"const loma::Real& {name}"
            return f"const at::Tensor& {name}"

        arguments = ", ".join(map(argument, self.passed))
        result = "void" if self.returned == 0 else "at::Tensor"
        if self.returned > 1:
            result = f"std::tuple<{', '.join(['at::Tensor'] * self.returned)}>"
        return f"{result} {self.name}({arguments})"

    @property
    def tensors(self) -> list[str]:
        return [
            cpp_name(p.name) + (".tensor" if p.type == FLOAT and p.mode == "In" else "")
            for p in self.passed
            if p.type != INT
        ]

    @property
    def ints(self) -> list[str]:
        return [cpp_name(param.name) for param in self.passed if param.type == INT]


def _ranked(type_: Type, array: str) -> str:
    """The rank, and the array of dimensions."""
    return f"{_rank(type_)}, {array if _rank(type_) > 0 else 'nullptr'}"


def returned_results(function: Function, zeroed: Collection[int]) -> int:
    """How many values a call gives back: an Out argument that is passed is written instead."""
    return len(function.results) + sum(function.params[k].mode == "Out" for k in zeroed)


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
