"""A kernel's text with its parameters, and what the host does to start it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter, data, statement_text
from loma.backends.cfamily.cpp import ELEMENTS
from loma.backends.cfamily.names import cpp_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda import texts
from loma.backends.cuda.forms import How, Kernel
from loma.backends.cuda.shapes import Shape
from loma.backends.schedule.ir import dtype_of
from loma.core import sizes
from loma.core.ir import Stmt, TensorType, Var
from loma.errors.spans import line_in_file

_MANY = 12  # loops of a kernel, which make it a long one
_FEW = 2  # of one that has loops around these whose rounds data say
_USUAL: Shape = {}
_SAME: Mapping[str, str] = {}


class Start:
    """A kernel and the call that starts it: parameters are added to both in the same order.
    ``shares``: its threads read what others of them have written."""

    def __init__(
        self, owner: HostWriter, stem: str, source: Sequence[Stmt], shares: bool = False
    ) -> None:
        self._owner, self._context = owner, owner.context
        self._source, self._shares = source, shares
        number = len(self._context.loops) + 1
        self.name = f"{cpp_name(self._context.function.name)}__{stem}{number}"
        self._params: list[str] = []
        self._pointers: list[str] = []
        self._exchanged: list[str] = []  # pointers to what other threads write between barriers
        self._elements: list[str] = []  # the numbers that may lie on the device
        self._given: list[str] = []
        self._numbers: dict[str, str] = {}  # which a kernel has last
        self._narrow: dict[str, Var] = {}  # tensors that it reads in the narrow dtype of the call

    def pointer(self, param: str, argument: str) -> None:
        self._params.append(param)
        self._pointers.append(param.rsplit(" ", 1)[1])
        self._given.append(f"launch_.pointer({argument});")

    def tensor(self, tensor: Var, name: str, written: bool) -> None:
        context = self._context
        if not written and _is_number(context, tensor):
            element = ELEMENTS[dtype_of(tensor)]
            self._params.append(f"const loma::Number<{element}> {name}given_")
            self._elements.append(f"const loma::Number<{element}> {name} = {name}given_.read();")
            self._given.append(f"launch_.template element<{element}>({context.variable(tensor)});")
            return
        if not written and tensor.name in context.narrow_reads:
            self._narrow[name] = tensor
            return
        type_, argument = data(context, tensor, written)
        self.pointer(f"{type_} __restrict {name}", argument)
        if written and self._shares:
            self._exchanged.append(name)

    def operand(self, name: str, tensor: Var, names: Mapping[str, str] = _SAME) -> None:
        """A tensor in the narrow dtype of the call; ``names``: where the host has it so."""
        self._params.append(f"const loma::Narrow* __restrict {name}")
        self._pointers.append(name)
        given = names.get(tensor.name, self._context.variable(tensor))
        self._given.append(f"launch_.operand({given});")

    def narrow_result(self, name: str, tensor: Var) -> None:
        """A new tensor of that dtype, which the variable becomes."""
        self._params.append(f"loma::Narrow* __restrict {name}")
        self._pointers.append(name)
        dims = c.list_text(map(self._context.ints, self._context.dims(tensor)))
        self._given.append(f"launch_.result({self._context.variable(tensor)}, {{{dims}}});")

    def number(self, type_: str, name: str, argument: str) -> None:
        if type_ == "int64_t":
            self._numbers[name] = argument
        else:
            self._params.append(f"const {type_} {name}")
            self._given.append(f"launch_.template value<{type_}>({argument});")

    def write(
        self, body: Writer, how: How, *given: str, before: str = "", shape: Shape = _USUAL,
        fixed: Sequence[str] = (), tiles: int = 0, **facts: bool,
    ) -> None:  # fmt: skip
        """The kernel with that body goes to the context, behind ``before``, the launch, which is
        ``given`` sizes and has that ``shape``, to where the host stands; ``facts`` are those of a
        :class:`Kernel`. Numbers that are ``fixed`` every form is compiled for."""
        self._numbers = {
            name: self._numbers[name] for name in dict.fromkeys((*fixed, *self._numbers))
        }
        self._add_narrow(body)
        kernel = Writer()
        kernel.comment("\n".join(map(statement_text, self._source)))
        kernel.line(f"LOMA_KERNEL {self.name}(")
        numbers = [f"LOMA_NUMBER_GIVEN({name})" for name in self._numbers]
        params = ",\n    ".join([*self._params, *numbers, "const loma::Grid grid_"])
        kernel.line(f"    {params}) {{")
        for k, name in enumerate(self._numbers):
            kernel.line(f"  LOMA_{'FIXED' if k < len(fixed) else 'NUMBER'}({k}, {name});")
        kernel.extend([f"  LOMA_POINTER({name});" for name in self._pointers])
        kernel.extend([f"  LOMA_EXCHANGED({name});" for name in self._exchanged])
        kernel.extend([f"  {line}" for line in self._elements])
        kernel.extend(body.lines)
        kernel.line("}")
        if self._context.serves_lists:
            kernel.line(f"LOMA_LISTS({self.name})")
        if "loma::Halves" in kernel.text():
            before, facts = texts.HALVES + before, {**facts, "narrow": True}
        if "loma::running" in kernel.text() or "loma::recurrence" in kernel.text():
            before = texts.RUNNING + before
        text = before + kernel.text()
        if "__scalar<" in text:
            text = f"{texts.VALUES}{self._context.helpers}\n\n{text}"
        loops = sum("team_." in written for written in body.lines)
        if loops > (_FEW if any(map(_is_told, body.lines)) else _MANY):
            text = f"{texts.LONG}{texts.INCLUDE}{text}"
        context = self._context
        line = next((s.span.line for s in self._source if s.span.line), 0)
        line = line_in_file(line) if line else 0
        record = Kernel(
            self.name, text, line, how, len(self._numbers), tiles=tiles, fixed=len(fixed), **facts
        )
        context.kernels.append(asdict(replace(record, lists=context.serves_lists)))
        made = f'"{self.name}", R"loma(\n{text}\n)loma"' + ", true" * context.serves_lists
        if context.choices is not None or fixed:  # a tuner makes kernels for known numbers
            made += ", false, true" if context.choices is not None else ", false, false"
        if fixed:
            made += f", {len(fixed)}"
        context.loops.append(f"static loma::gpu::Kernel {self.name}({made});")
        writer = self._owner.writer
        writer.declare(f"loma::gpu::Launch launch_({self.name}, sizeof(real));")
        writer.extend(self._given)
        writer.extend([f"launch_.number({argument});" for argument in self._numbers.values()])
        writer.extend([f"launch_.shape().{part} = {value};" for part, value in shape.items()])
        writer.line(f"launch_.{how}({', '.join(given)});")

    def _add_narrow(self, body: Writer) -> None:
        """Adds the parameters for what is read in the narrow dtype, or in that of computing where
        the text does more than read elements."""
        for name, tensor in self._narrow.items():
            variable = self._context.variable(tensor)
            if all(re.search(rf"\b{name}\b(?!\[)", line) is None for line in body.lines):
                self._params.append(f"const loma::Halves {name}")
                self._given.append(f"launch_.halves({variable});")
                continue
            self._given.append(
                f"const loma::Tensor {name}wide_ = loma::gpu::widened<real>({variable});"
            )
            self.pointer(
                f"const real* __restrict {name}", f"{name}wide_.template const_data_ptr<real>()"
            )


def _is_number(context: CppContext, tensor: Var) -> bool:
    """Whether a tensor may be a number of the host's: a parameter of one element."""
    floats = isinstance(tensor.type, TensorType) and tensor.type.element in ("float", "float32")
    return (
        floats
        and sizes.dims_of(tensor) == ()
        and any(
            param.name == tensor.name and param.mode == "In" for param in context.function.params
        )
    )


def dedented(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("  ") for line in lines]


def _is_told(line: str) -> bool:
    """Whether a line says how many rounds a loop has, by what it reads of a tensor."""
    return line.lstrip().startswith("const int64_t count") and "loma::element<int64_t>(" in line
