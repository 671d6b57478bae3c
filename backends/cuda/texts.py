"""The headers of a kernel's text, by the names under which NVRTC finds them."""

from __future__ import annotations

import functools
from pathlib import Path

_BACKENDS = Path(__file__).parent.parent
# The first four are those of CPUs as they are.
_FILES = (
    "openmp/runtime/arithmetic.h", "openmp/runtime/interval.h", "openmp/runtime/spans.h",
    "openmp/runtime/special.h", "cuda/runtime/report.h",
    "cuda/device/checks.h", "cuda/device/containers.h", "cuda/device/device.h",
    "cuda/device/divide.h", "cuda/device/grid.h", "cuda/device/halves.h", "cuda/device/inner.h",
    "cuda/device/items.h", "cuda/device/lists.h",
    "cuda/device/matrix/matrix_units.h", "cuda/device/matrix/pairs.h", "cuda/device/parts.h",
    "cuda/device/places.h", "cuda/device/reduce.h", "cuda/device/running.h",
    "cuda/device/several.h", "cuda/device/statement.h", "cuda/device/std.h",
    "cuda/device/team.h", "cuda/device/values.h", "cuda/device/vector_math.h",
    "cuda/device/matrix/sweep.h", "cuda/device/matrix/warp_pairs.h",
    "cuda/device/matrix/warp_sweep.h", "cuda/device/matrix/warpgroups.h",
    "cuda/device/matrix/wide_pairs.h", "cuda/device/matrix/wide_sweep.h",
)  # fmt: skip
_STANDARD = {
    "std.h": ("algorithm", "cmath", "cstddef", "cstdint", "functional", "limits"),
    "containers.h": ("array", "type_traits"),
}

# What a kernel's text begins with.
INCLUDE = '#include "device.h"\n'
# What stands before that in a kernel of many loops: a form for any numbers has each of them once.
LONG = "#define LOMA_LONG\n"
# What it has besides where scalar functions come with it.
VALUES = '#include "values.h"\n'
# What one has with inner loops.
INNER = '#include "inner.h"\n'
# What one has that is a pass over columns.
SWEEP = '#include "sweep.h"\n'
PAIRS = '#include "pairs.h"\n'
# What one has that reads tensors in a narrow dtype.
HALVES = '#include "halves.h"\n'
# What one has with running reductions.
RUNNING = '#include "running.h"\n'
# What one has that is a sum of which a thread may have several.
SEVERAL = '#include "several.h"\n'


@functools.cache
def headers() -> dict[str, str]:
    """The text of each header. No header of the system or of CUDA is among them."""
    own = {Path(file).name: (_BACKENDS / file).read_text(encoding="utf-8") for file in _FILES}
    standard = {name: f'#include "{file}"\n' for file, names in _STANDARD.items() for name in names}
    return {**own, **standard}
