"""The numbers of a run, one row an epoch: as CSV, and for TensorBoard."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from capsnet_loma.training.checkpoint import CheckpointError, replace


@dataclass(frozen=True, slots=True)
class Row:
    """``step`` and ``seconds`` count from the start of the training; accuracies are in 0..1."""

    epoch: int
    step: int
    seconds: float
    learning_rate: float
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    images_per_second: float


COLUMNS = tuple(field.name for field in fields(Row))


class Metrics:
    """Writes both. ``after``: rows of later epochs than that are dropped, for they come again.

    Raises CheckpointError when the CSV is damaged, or when the numbers cannot be written.
    """

    def __init__(self, csv_file: Path, board: Path, after: int) -> None:
        self._file, self._board_folder = csv_file, board
        kept = _rows(csv_file) if after else []
        self._rows = [row for row in kept if int(row["epoch"]) <= after]
        self._board: Any = None
        self._after = after

    def add(self, row: Row) -> None:
        self._rows.append({name: repr(value) for name, value in asdict(row).items()})
        self.write()
        try:
            board = self._writer()
            for name in COLUMNS[3:]:
                part, _, what = name.partition("_")
                tag = f"{what}/{part}" if part in ("train", "test") else name
                board.add_scalar(tag, getattr(row, name), row.epoch)
            board.flush()
        except OSError as error:
            raise CheckpointError(
                f"{self._board_folder} cannot be written: {error.strerror or error}. Make room, "
                "then go on with --resume."
            ) from error

    def close(self) -> None:
        if self._board is not None:
            with contextlib.suppress(OSError):  # has been reported when it was written
                self._board.close()

    def write(self) -> None:
        """The CSV, whole: a row an epoch stays small."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        replace(self._file, text.getvalue().encode("utf-8"))

    def _writer(self) -> Any:
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._board_folder), purge_step=self._after + 1)
        return self._board


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV that :class:`Metrics` wrote; none where there is no file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        whole = all(_is_row(row) for row in rows)
    except FileNotFoundError:
        return []
    except (csv.Error, UnicodeDecodeError):
        whole = False
    if not whole:
        raise CheckpointError(
            f"{path} is damaged: expected are numbers in the columns {', '.join(COLUMNS)}. Move it "
            "away, then --resume goes on without the epochs that it had."
        )
    return rows


def _is_row(row: dict[str, str]) -> bool:
    if tuple(row) != COLUMNS or not row["epoch"].isdigit():
        return False
    try:
        return all(math.isfinite(float(value)) for value in row.values())
    except (TypeError, ValueError):  # too few, or no numbers
        return False
