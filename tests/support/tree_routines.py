"""What trees call of libraries, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loma.backends.schedule.host import Arranged, Convolve

Array = NDArray[Any]


def convolve(node: Convolve, operands: Sequence[Any], shifts: Sequence[int]) -> Array:
    """The image, or the first of the other two tensors, with what is summed into it; ``operands``
    are all three, in order. Elements outside of the image count as zero."""
    parts = (node.image, node.first, node.second)
    image, first, second = map(_arranged, parts, operands)
    missing = 2 - len(node.spatial)
    geometry = [(1, 1, 0)] * missing + [
        (meeting.step, meeting.tap, shift)
        for meeting, shift in zip(node.spatial, shifts, strict=True)
    ]
    u_sizes, v_sizes = first.shape[3:], second.shape[3:]
    for u, v in product(np.ndindex(*u_sizes), np.ndindex(*v_sizes)):
        at = [s * a + t * b + c for (s, t, c), a, b in zip(geometry, u, v, strict=True)]
        if not all(0 <= place < size for place, size in zip(at, image.shape[3:], strict=True)):
            continue
        place = (..., *at)
        if node.spreads:
            image[place] += np.einsum("gno,goc->gnc", first[(..., *u)], second[(..., *v)])
        else:
            first[(..., *u)] += np.einsum("gnc,goc->gno", image[place], second[(..., *v)])
    result: Array = operands[0 if node.spreads else 1]
    return result


def _arranged(part: Arranged, array: Array) -> Array:
    """A view of the tensor as groups, batch, channels and two dimensions of space."""
    own = [dim for dim in part.order if dim >= 0]
    view = array.transpose(own)
    for position, dim in enumerate(part.order):
        if dim < 0:
            view = np.expand_dims(view, position)
    return view
