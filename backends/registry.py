"""The devices that tensor functions run on: one row each."""

from __future__ import annotations

from loma.backends.cfamily.device import Device
from loma.backends.cuda import launches as cuda
from loma.backends.cuda import lists
from loma.backends.cuda import lower as cuda_lower
from loma.backends.lowering.index_statements import library_call
from loma.backends.openmp.launches import write
from loma.backends.lowering.lower import lower
from loma.backends.schedule import target

CPU = Device(target.CPU, "prelude.h", "light_prelude.h", library_call, lower, write)
CUDA = Device(
    target.GPU,
    "prelude.h",
    "light_prelude.h",
    library_call,
    cuda_lower.lower,
    cuda.write,
    "gpu.h",
    lists.serves_lists,
)
