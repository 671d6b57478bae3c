"""What lowering has to know of a machine: every number of it that decides something is here.

The runtime's headers get theirs from here, too, as macros (:mod:`loma.backends.toolchain`). What a
library routine does inside, as that of convolutions, is its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A machine, as far as loop trees depend on it.

    ``threads``: loops run in parallel. ``library``: there are routines for matrix products and
    convolutions. Without vectors there are no lanes, tiles and groups in trees: loops are plain,
    and a running reduction is one number.

    Results depend on most of these numbers, as sums are taken in another order.
    """

    threads: bool
    library: bool
    teams: bool  # an iteration may have many threads, and the host goes through panels one by one

    # Vectors. Where the processor's are shorter (no AVX), or fewer (no AVX-512), headers take half.
    vector_bytes: int  # 0: there are none
    tile: int  # vectors in a tile along the row, without a second axis
    accumulators: int  # vectors of sums that a tile holds, so that operands have registers, too
    group: int  # values of a second axis in one tile, at most
    gain: float  # loads per step of arithmetic, of those without a second axis, that make it pay

    # The order of loops: what is read again while it is still in a cache.
    strip: int  # elements of the target, one after the other, before another axis has its turn
    # Elements of a row before the next row, where a tensor is read across its own rows: as many
    # lines of memory are in use at a time, which may share one set of a first-level cache.
    across: int
    # Rows and columns of a square that is transposed in a first-level cache: a line of memory each.
    square: int
    block: int  # steps of a sum before the next tile, so that it streams through its operands

    # Up to so many columns of a product of matrices, or terms of its sums, loops take less time
    # than a library, which has other shapes in mind.
    few_columns: int
    few_terms: int

    # Work for threads.
    chunk: int  # iterations in a piece of a loop that is cut into pieces of fixed length
    grain: int  # innermost steps that are worth a thread

    # Fused kernels over blocks of values, whose private tensors stay in the first-level cache, and
    # panels of them, whose temporaries stay in the last one; in a core's own where a library
    # multiplies matrices, which reads and writes them as fast as that goes.
    block_bytes: int
    block_least: int  # values, and the number that they are a multiple of
    block_most: int
    rows: int  # elements of all rows of a block, where it sums over them; 0: blocks have no sums
    panel_bytes: int
    product_bytes: int
    panel_least: int  # values

    # Whether a quotient by what a loop does not change may be a product, and rounded otherwise.
    reciprocals: bool = True
    # Whether the text says which products and sums are rounded as one. Elsewhere the compiler
    # chooses, and not always alike for one statement: where a loop's count is known it may unroll.
    fused: bool = False

    @property
    def lanes(self) -> int:
        """The numbers in a vector, for choices: float32."""
        return self.vector_bytes // 4

    @property
    def short(self) -> int:
        """A row of this length is one tile in any floating type."""
        return self.vector_bytes // 8 * self.tile


# x86-64. Half of AVX-512's vectors: short rows fill them, and twice as many sums are under way at a
# time. A set of a first-level cache has 8 to 12 lines.
CPU = Target(
    threads=True, library=True, teams=False,
    vector_bytes=32, tile=4, accumulators=16, group=8, gain=0.8,
    strip=512, across=8, square=16, block=64, few_columns=16, few_terms=8,
    chunk=4096, grain=16384,
    block_bytes=16384, block_least=64, block_most=4096, rows=1 << 16, panel_bytes=8 << 20,
    product_bytes=2 << 20, panel_least=16,
)  # fmt: skip

# GPUs of NVIDIA. Panels keep temporaries in the second-level cache, but have a block for each
# processor: one with fewer takes as long.
GPU = Target(
    threads=True, library=True, teams=True,
    vector_bytes=0, tile=1, accumulators=1, group=1, gain=0.0,
    strip=1, across=1, square=1, block=1, few_columns=0, few_terms=0,
    chunk=1, grain=1,
    block_bytes=16384, block_least=32, block_most=256, rows=0, panel_bytes=64 << 20,
    product_bytes=64 << 20, panel_least=128,
    fused=True,
)  # fmt: skip
