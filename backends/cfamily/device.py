"""What a backend for tensor functions is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.writer import Writer
from loma.backends.kernels.ir import Step
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import Contract, Convolve, HostNode, Launch, Stream
from loma.backends.schedule.ir import InPlace, Parallel
from loma.core.ir import IndexAssign

Library = Contract | Convolve


@dataclass(frozen=True, slots=True)
class Device:
    """What runs the loops of tensor functions: how they are lowered to trees, and spelled.

    ``library_call``: what a statement becomes that a library computes as a whole. ``lower``: a
    function's steps to its tree. ``write_loops``, ``write_launch`` and ``write_stream`` write the
    nodes that the device runs; what the host does besides is the same for all devices.
    """

    name: str
    library_call: Callable[[IndexAssign], Library | None]
    lower: Callable[[FunctionContext, tuple[Step, ...]], tuple[HostNode, ...]]
    write_loops: Callable[[Writer, CppContext, Parallel | InPlace], None]
    write_launch: Callable[[HostWriter, Launch], None]
    write_stream: Callable[[HostWriter, Stream], None]
