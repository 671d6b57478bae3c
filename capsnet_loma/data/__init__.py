"""What a CapsNet is trained on: grey square images of the ten digits, or of ten other classes.

``load(folder)`` reads MNIST or Fashion-MNIST, ``load()`` gives scikit-learn's digits, which need no
download; :mod:`capsnet_loma.data.batches` makes batches of them.
"""

from __future__ import annotations

from pathlib import Path

from capsnet_loma.data.images import CLASSES, DataError, Dataset, ImageSet

__all__ = ["CLASSES", "DataError", "Dataset", "ImageSet", "load"]


def load(folder: Path | None = None) -> Dataset:
    """The data set in a folder of IDX files, by default the built-in digits.

    Raises DataError when files are missing or damaged.
    """
    if folder is None:
        from capsnet_loma.data.digits import load_digits

        return load_digits()
    from capsnet_loma.data.idx import load_folder

    return load_folder(folder)
