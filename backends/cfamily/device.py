"""What a backend for tensor functions is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loma.backends.cfamily.context import HostWriter
from loma.backends.kernels.ir import Step
from loma.backends.kernels.sharing import Routine
from loma.backends.schedule.choices import Choices
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import (
    Carry, Clear, Contract, Convolve, Either, Group, GroupedContract, HostNode, Lanes, Launch,
    PairsPass, Pass, Serial, Spread, Stream,
)  # fmt: skip
from loma.backends.schedule.ir import InPlace, Parallel
from loma.backends.schedule.target import Target
from loma.core.ir import Function, IndexAssign

Library: TypeAlias = Contract | GroupedContract | Convolve
DeviceNode: TypeAlias = (
    Parallel
    | InPlace
    | Launch
    | Group
    | Spread
    | Carry
    | Lanes
    | Stream
    | Pass
    | PairsPass
    | Either
    | Serial
    | Clear
)


@dataclass(frozen=True, slots=True)
class Device:
    """What runs the loops of tensor functions: how they are lowered to trees, and spelled.

    ``machine``: what lowering knows of it. ``prelude``: the header of the runtime with what
    generated code needs, which says where tensors are; ``light_prelude`` that of code which calls
    no operator of ATen. ``library_call``: what a statement becomes
    that a library computes as a whole. ``lower``: a function's steps to its tree. ``write`` writes
    a node that the device runs; what the host does besides is the same for all devices. Tensors are
    cleared by the device inside kernels and serial loops. ``launches``: the header of what the host
    starts kernels with, on a device that has some of its own. ``serves_lists``: whether a launch
    there may serve several calls of the function. ``choices`` says which way lowering
    goes where there are several; None: the usual one.
    """

    machine: Target
    prelude: str
    light_prelude: str
    library_call: Callable[[IndexAssign, Target], Library | None]
    lower: Callable[[FunctionContext, tuple[Step, ...]], tuple[HostNode, ...]]
    write: Callable[[HostWriter, DeviceNode], None]
    launches: str = ""
    serves_lists: Callable[[Function, Sequence[HostNode]], bool] = lambda *_: False
    choices: Choices | None = None

    def library_call_of(self, stmt: IndexAssign) -> Library | None:
        return self.library_call(stmt, self.machine)

    def routine_of(self, stmt: IndexAssign) -> Routine | None:
        match self.library_call_of(stmt):
            case Contract():
                return "product"
            case GroupedContract():
                return "products of groups"
            case Convolve():
                return "convolution"
            case None:
                return None
