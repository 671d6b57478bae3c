"""Automatic differentiation: from IR to IR, without a word about any backend."""

from loma.ad.differentiate import differentiate, split_pairs, with_tangents
from loma.core.saving import Source, SplitPair

__all__ = ["Source", "SplitPair", "differentiate", "split_pairs", "with_tangents"]
