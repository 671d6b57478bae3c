"""Calls of @simd functions with tensors of a GPU: what their kernels take, from what Python passes.

Arrays are tensors of that GPU, passed as pointers and never copied; numbers may lie there, too.
Values of a struct are rows of its numbers, in order: an ``Array[Ball]`` is a tensor of shape
``(n, 4)`` where a ``Ball`` has four. Lists, objects and Python's numbers are read on the host.
Nothing is read back: what a call gives is on the GPU.
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from loma.backends.scalar.layout import SLICE, WORD, Type, Types, describe, levels, spelled

if TYPE_CHECKING:
    import torch

# Launches a kernel: the device's number, or -1 for a stand-in, how many items, parameters' bytes.
Launch = Callable[[int, int, list[bytes]], None]

_MOST = 2**31 - 1
_KINDS: dict[str, type] = {"float": float, "int": int}
# As a kernel takes them: where one lies on the GPU, or no place and its value.
_NUMBERS = {"float": struct.Struct("Pf4x"), "int": struct.Struct("Pi4x")}
_NO_AUTOGRAD = (
    "requires grad, but a scalar function takes no part in autograd: pass detach() of it, and call "
    "the function's derivative for gradients"
)
_NO_ADJOINT = (
    "is a list of what has arrays of any size in it: its adjoint cannot be computed on a GPU, call "
    "the function with memory of the CPU"
)


class OnGpu:
    """A @simd function for tensors of a GPU. It is called with the values of the arguments that a
    caller passes, in order; ``function`` and ``types`` are the records of the module. ``launch`` is
    asked for at the first call."""

    def __init__(
        self, function: dict[str, Any], types: Types, launch: Callable[[], Launch]
    ) -> None:
        self.name: str = function["name"]
        self.params: list[dict[str, Any]] = function["all_params"]
        self.types = types
        self._make = launch
        self._launch: Launch | None = None

    def __call__(self, *values: Any) -> Any:
        call = _Call(self, values)
        given, results = list[bytes](), list[Any]()
        items, argument, left = 0, None, iter(values)
        for param in self.params:
            place, type_, role = param["name"], param["record"], param["role"]
            if role == "Adjoint":
                memory, result = call.adjoint(place, type_, argument)
                given.append(memory)
                results.append(result)
                continue
            argument = next(left)
            if role == "Items":
                items = call.items(place, argument)
            else:
                given.append(call.parameter(place, type_, role, argument))
        call.check_overlaps()
        if self._launch is None:
            self._launch = self._make()
        self._launch(call.number, items, given)
        return tuple(results) if results else None


class _Call:
    """One call. It keeps what it makes until the kernel is launched: memory of a GPU that is freed
    later serves what is launched later."""

    def __init__(self, function: OnGpu, values: Sequence[Any]) -> None:
        import torch

        self.function, self.types = function, function.types
        self.torch = torch
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        on_gpu = (tensor for tensor in tensors if tensor.is_cuda)
        self.device = next(on_gpu, tensors[0]).device
        # A stand-in serves the CPU's tensors, in tests.
        self.number = self.device.index if self.device.type == "cuda" else -1
        self.kept: list[torch.Tensor] = []
        self.ranges: list[tuple[int, int, str, bool]] = []

    def fail(self, error: type[Exception], place: str, text: str) -> NoReturn:
        raise error(f"{self.function.name}: argument '{place}' {text}")

    # -------------------------------------------------------------------------------- parameters

    def plain(self, place: str, type_: Type, role: str, value: Any) -> bytes | None:
        """An argument that is as nearly all are: a number, or an array of numbers that a tensor
        has. None for others, and for wrong ones."""
        kind = type_[0]
        if kind == "array":
            leaf, torch, copied = type_[1][0], self.torch, role == "Copy"
            if type(value) is not torch.Tensor or leaf not in _KINDS or copied or type_[2]:
                return None
            dtype = torch.float32 if leaf == "float" else torch.int32
            if (
                value.dtype is not dtype
                or value.layout is not torch.strided
                or value.dim() != 1
                or not value.is_contiguous()
                or value.requires_grad
                or value.is_neg()
                or value.device != self.device
                or (count := value.shape[0]) > _MOST
            ):
                return None
            start = value.data_ptr()
            if count:
                self.ranges.append((start, start + count * WORD, place, role != "In"))
            return SLICE.pack(start, count)
        if role == "In" and type(value) is _KINDS.get(kind):
            try:
                return _NUMBERS[kind].pack(0, value)
            except (struct.error, OverflowError):  # too large
                return None
        return None

    def parameter(self, place: str, type_: Type, role: str, value: Any) -> bytes:
        """An argument as the kernel takes it."""
        if (found := self.plain(place, type_, role, value)) is not None:
            return found
        if type_[0] == "array":
            return SLICE.pack(*self.array(place, type_, role, value))
        if role == "Out":
            if not isinstance(value, self.torch.Tensor):
                self.fail(TypeError, place, f"is written: it must be a tensor on {self.device} of "
                          f"{self._elements(type_)}, got {describe(value)}")  # fmt: skip
            self._check(place, type_, value)
            words = self.types.layout(type_)[0] // WORD
            if value.numel() != words:
                counted = "one element" if words == 1 else f"{words} elements"
                self.fail(ValueError, place, f"must have {counted}, got {describe(value)}")
            return struct.pack("P", self._pointer(place, value, written=True))
        if type_[0] == "struct":
            memory = bytearray(self.types.layout(type_)[0])
            self.fill(place, type_, value, memory, 0)
            return bytes(memory)
        if isinstance(value, self.torch.Tensor) and value.device == self.device:
            return _NUMBERS[type_[0]].pack(
                self._pointer(place, self._number(place, type_, value)), 0
            )
        number = (self._float if type_[0] == "float" else self._int)(place, value)
        return _NUMBERS[type_[0]].pack(0, number)

    def items(self, place: str, value: Any) -> int:
        count = self._int(place, value)
        if count < 0:
            text = f"is the number of work items: it must not be negative, got {count}"
            self.fail(ValueError, place, text)
        return count

    def adjoint(self, place: str, type_: Type, argument: Any) -> tuple[bytes, Any]:
        """The adjoint of an argument, all zero: what the kernel takes, and what the call gives."""
        if type_[0] == "array":
            made = self.zeros_like(place, type_, argument)
            return self.parameter(place, type_, "Adjoint", made), made
        if type_[0] in _KINDS:
            number = self.torch.zeros((), dtype=self.torch.float32, device=self.device)
            self.kept.append(number)
            return struct.pack("P", number.data_ptr()), number if type_[0] == "float" else 0
        memory = bytearray(self.types.layout(type_)[0])
        opened = dict[int, Any]()
        if type_[0] == "struct":
            self._open_adjoints(place, type_, argument, memory, 0, opened)
        floats = self.upload(memory).view(self.torch.float32)
        return struct.pack("P", floats.data_ptr()), self._view(type_, floats, 0, opened)

    # ------------------------------------------------------------------------------ on the host

    def fill(self, place: str, type_: Type, value: Any, memory: bytearray, at: int) -> None:
        """Writes a value that the host reads as C has it."""
        match type_[0]:
            case "float":
                struct.pack_into("f", memory, at, self._float(place, value))
            case "int":
                struct.pack_into("i", memory, at, self._int(place, value))
            case "array" if type_[2] is None:
                SLICE.pack_into(memory, at, *self.array(place, type_, "In", value))
            case "array":
                count, stride = int(type_[2]), self.types.layout(type_[1])[0]
                if len(value) != count:
                    text = f"must be {spelled(type_)}, got {len(value)} elements"
                    self.fail(ValueError, place, text)
                for k, element in enumerate(_listed(value)):
                    self.fill(f"{place}[{k}]", type_[1], element, memory, at + k * stride)
            case "struct":
                for member, own, offset in self.types.places(type_[1]):
                    if not hasattr(value, member):
                        names = ", ".join(name for name, _ in self.types.members[type_[1]])
                        self.fail(TypeError, place, "must be an object with the attributes "
                                  f"{names} (the struct {type_[1]}), got {describe(value)} without "
                                  f"'{member}'")  # fmt: skip
                    here = f"{place}.{member}"
                    self.fill(here, own, getattr(value, member), memory, at + offset)

    def _float(self, place: str, value: Any) -> float:
        self._check_on_host(place, value)
        try:
            number = float(value) if not isinstance(value, str | bytes) else None
        except (TypeError, ValueError):
            number = None
        except OverflowError:
            self.fail(ValueError, place, "is too large for a float")
        if number is None:
            self.fail(TypeError, place, f"must be a number, got {describe(value)}")
        return ctypes.c_float(number).value

    def _int(self, place: str, value: Any) -> int:
        self._check_on_host(place, value)
        try:
            number = operator.index(value)
        except TypeError:
            self.fail(TypeError, place, f"must be an int, got {describe(value)}")
        if not -_MOST <= number + 1 <= _MOST + 1:
            self.fail(ValueError, place, "does not fit in 32 bits")
        return number

    def _check_on_host(self, place: str, value: Any) -> None:
        """Reading a number of a GPU would wait for it."""
        if isinstance(value, self.torch.Tensor):
            if value.device.type != "cpu":
                self.fail(ValueError, place, "is read by the host: it must be a Python number, got "
                          f"a tensor on {value.device}")  # fmt: skip
            if value.dim() != 0:
                text = f"must be a number or a 0-dimensional tensor, got {describe(value)}"
                self.fail(ValueError, place, text)
            if value.requires_grad:
                self.fail(TypeError, place, _NO_AUTOGRAD)

    # -------------------------------------------------------------------------------- on the GPU

    def array(self, place: str, type_: Type, role: str, value: Any) -> tuple[int, int]:
        """Where an array's elements lie, and how many there are."""
        element, size = type_[1], type_[2]
        if isinstance(value, self.torch.Tensor):
            self._check(place, type_, value)
            shape = self._shape(place, type_, value)
            if role == "Copy":
                value = value.clone()
            written = role in ("Out", "Adjoint")
            return self._rows(type_, self._pointer(place, value, written), shape), shape[0]
        if role == "Out" or not isinstance(value, list | tuple):
            kinds = "a tensor" if role == "Out" else "a tensor or a list"
            self.fail(TypeError, place, f"must be {spelled(type_)}, {kinds} on {self.device}, as "
                      f"other arguments are, got {describe(value)}")  # fmt: skip
        if size is not None and len(value) != size:
            text = f"must be {spelled(type_)}, got {len(value)} elements"
            self.fail(ValueError, place, text)
        stride = self.types.layout(element)[0]
        memory = bytearray(stride * len(value))
        for k, item in enumerate(value):
            here = f"{place}[{k}]"
            if role == "Adjoint":  # of a list of arrays
                SLICE.pack_into(memory, k * stride, *self.array(here, element, role, item))
            else:
                self.fill(here, element, item, memory, k * stride)
        return self.upload(memory).data_ptr() if memory else 0, len(value)

    def _check(self, place: str, type_: Type, tensor: torch.Tensor) -> None:
        """A tensor that the kernel reads or writes."""
        if tensor.is_nested:
            self.fail(TypeError, place, "must be a dense tensor, got a nested tensor")
        if tensor.requires_grad:
            self.fail(TypeError, place, _NO_AUTOGRAD)
        if tensor.device != self.device:
            self.fail(ValueError, place, f"is on {tensor.device}, but other arguments are on "
                      f"{self.device}")  # fmt: skip
        if tensor.layout != self.torch.strided:
            self.fail(ValueError, place, f"must be a dense tensor, got layout {tensor.layout}")
        if tensor.is_neg():
            self.fail(ValueError, place, "is a view whose numbers are negated when they are read: "
                      "pass resolve_neg() of it")  # fmt: skip
        if tensor.dtype not in self._dtypes(type_):
            self.fail(TypeError, place, f"must be {self._elements(type_)}, got {describe(tensor)}")
        if not tensor.is_contiguous():
            self.fail(ValueError, place, "must be contiguous, got strides")

    def _dtypes(self, type_: Type) -> list[torch.dtype]:
        """Those of a tensor with such values; one of both floats and ints may have either, which
        says nothing of its bits."""
        known = {"float": self.torch.float32, "int": self.torch.int32}
        return [known[kind] for kind in sorted(self.types.kinds(type_) or {"int"})]

    def _elements(self, type_: Type) -> str:
        return " or ".join(str(dtype).removeprefix("torch.") for dtype in self._dtypes(type_))

    def _shape(self, place: str, type_: Type, tensor: torch.Tensor) -> list[int]:
        """Without the numbers of a struct, which are the last dimension."""
        wanted, leaf = levels(type_)
        if leaf[0] == "struct":
            if self.types.is_open(leaf):
                self.fail(TypeError, place, f"must be a list of objects, because {leaf[1]} has "
                          f"arrays of any size in it, got {describe(tensor)}")  # fmt: skip
            wanted.append(self.types.layout(leaf)[0] // WORD)
        shape = list(tensor.shape)
        fits = len(shape) == len(wanted)
        if not fits or any(w not in (None, s) for w, s in zip(wanted, shape, strict=True)):
            rows = f" as rows of {wanted[-1]} numbers" if leaf[0] == "struct" else ""
            self.fail(ValueError, place, f"must be {spelled(type_)}{rows}, got a tensor of shape "
                      f"{tuple(shape)}")  # fmt: skip
        if any(extent > _MOST for extent in shape):
            self.fail(ValueError, place, "has more elements than an int counts")
        return shape

    def _rows(self, type_: Type, pointer: int, shape: list[int]) -> int:
        """The elements of an array of arrays, from memory of that shape: where an inner array has
        any size, slices stand for them."""
        sizes, leaf = levels(type_)
        stride = self.types.layout(leaf)[0]
        for k in range(len(sizes) - 1, 0, -1):
            if sizes[k] is not None:
                stride *= shape[k]
                continue
            count = math.prod(shape[:k])
            if count == 0:
                return 0
            starts = self.torch.arange(count, dtype=self.torch.int64, device=self.device)
            starts = starts * (shape[k] * stride) + pointer
            counts = self.torch.full_like(starts, shape[k])  # an int, and what fills the slice up
            rows = self.torch.stack((starts, counts), 1)
            self.kept.append(rows)
            pointer, stride = rows.data_ptr(), SLICE.size
        return pointer

    def _number(self, place: str, type_: Type, tensor: torch.Tensor) -> torch.Tensor:
        """A number of the GPU, of the type that the function has."""
        if tensor.dim() != 0:
            text = f"must be a number or a 0-dimensional tensor, got {describe(tensor)}"
            self.fail(ValueError, place, text)
        if type_[0] == "int" and (tensor.is_floating_point() or tensor.is_complex()):
            self.fail(TypeError, place, f"must be an int, got {describe(tensor)}")
        if tensor.is_complex():
            self.fail(TypeError, place, f"must be a real number, got {describe(tensor)}")
        (dtype,) = self._dtypes(type_)
        if not tensor.requires_grad:
            tensor = tensor.to(dtype)
        self._check(place, type_, tensor)
        return tensor

    def _pointer(self, place: str, tensor: torch.Tensor, written: bool = False) -> int:
        self.kept.append(tensor)
        pointer = tensor.data_ptr()
        argument = place.split(".")[0].split("[")[0]
        if tensor.numel():
            end = pointer + tensor.numel() * tensor.element_size()
            self.ranges.append((pointer, end, argument, written))
        return pointer

    def check_overlaps(self) -> None:
        """ValueError when memory that is written belongs to another argument, too."""
        last: tuple[int, int, str, bool] | None = None  # of those so far, what reaches furthest
        written: tuple[int, int, str, bool] | None = None
        for own in sorted(self.ranges):
            other = last if own[3] else written
            if other is not None and own[0] < other[1]:
                which = own if own[3] else other
                a, b = sorted((own[2], other[2]))
                raise ValueError(
                    f"{self.function.name}: arguments '{a}' and '{b}' share memory, and "
                    f"'{which[2]}' is written"
                    if a != b
                    else f"{self.function.name}: argument '{a}' is written, but parts of it share "
                    "memory"
                )
            if last is None or own[1] > last[1]:
                last = own
            if own[3] and (written is None or own[1] > written[1]):
                written = own

    def upload(self, memory: bytearray) -> torch.Tensor:
        """Those bytes on the GPU, behind what was launched before; the host does not wait."""
        made = self.torch.frombuffer(memory, dtype=self.torch.uint8)
        if self.number < 0:
            made = made.clone()
        elif memory.count(0) < len(memory):
            made = made.pin_memory().to(self.device, non_blocking=True)
        else:
            made = self.torch.zeros_like(made, device=self.device)
        self.kept.append(made)
        return made

    # ---------------------------------------------------------------------------------- adjoints

    def zeros_like(self, place: str, type_: Type, argument: Any) -> Any:
        """What the adjoint of an array is added to: a tensor, or a list of tensors."""
        torch = self.torch
        if isinstance(argument, torch.Tensor):
            return torch.zeros_like(argument)
        element, leaf, shape = type_[1], type_[1], [len(argument)]
        while leaf[0] == "array" and leaf[2] is not None:
            shape.append(leaf[2])
            leaf = leaf[1]
        if leaf[0] == "array" and element is leaf:
            return [self.zeros_like(f"{place}[{k}]", element, a) for k, a in enumerate(argument)]
        if self.types.is_open(leaf):
            self.fail(TypeError, place, _NO_ADJOINT)
        if leaf[0] == "struct":
            shape.append(self.types.layout(leaf)[0] // WORD)
        return torch.zeros(shape, dtype=self._dtypes(leaf)[0], device=self.device)

    def _open_adjoints(
        self, place: str, type_: Type, argument: Any, memory: bytearray, at: int,
        made: dict[int, Any],
    ) -> None:  # fmt: skip
        """Slices of the arrays of any size in a struct's adjoint, which are ``made`` by place."""
        for member, own, offset in self.types.places(type_[1]):
            here, start = f"{place}.{member}", at + offset
            if own[0] == "struct":
                self._open_adjoints(here, own, getattr(argument, member), memory, start, made)
            elif own[0] == "array" and self.types.is_open(own):
                if own[2] is not None:
                    self.fail(TypeError, here, _NO_ADJOINT)
                made[start] = self.zeros_like(here, own, getattr(argument, member))
                SLICE.pack_into(memory, start, *self.array(here, own, "Adjoint", made[start]))

    def _view(self, type_: Type, floats: torch.Tensor, at: int, opened: Mapping[int, Any]) -> Any:
        """An adjoint as Python has it, with its numbers on the GPU."""
        word = at // WORD
        match type_[0]:
            case "int":
                return 0
            case "float":
                return floats[word]
            case "array" if at in opened:
                return opened[at]
            case "array":  # none of any size
                sizes, leaf = levels(type_)
                shape = [int(size) for size in sizes if size is not None]
                if leaf[0] == "struct":
                    stride = self.types.layout(type_[1])[0]
                    places = (at + k * stride for k in range(shape[0]))
                    return [self._view(type_[1], floats, place, opened) for place in places]
                found = floats[word : word + math.prod(shape)].view(shape)
                return found if leaf[0] == "float" else found.view(self.torch.int32)
        values = {
            member: self._view(own, floats, at + offset, opened)
            for member, own, offset in self.types.places(type_[1])
        }
        return self.types.classes[type_[1]](**values)


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
