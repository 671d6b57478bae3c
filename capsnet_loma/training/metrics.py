"""The numbers of a run, one row an epoch: as CSV, and for TensorBoard."""

from __future__ import annotations

import csv
import io
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

    Raises CheckpointError when the CSV cannot be written.
    """

    def __init__(self, csv_file: Path, board: Path, after: int) -> None:
        self._file, self._board_folder = csv_file, board
        self._rows = [row for row in _rows(csv_file) if int(row["epoch"]) <= after]
        self._board: Any = None
        self._purge = after + 1 if after else None
        self._write()

    def add(self, row: Row) -> None:
        self._rows.append({name: repr(value) for name, value in asdict(row).items()})
        self._write()
        board = self._writer()
        for name in COLUMNS[3:]:
            part, _, what = name.partition("_")
            tag = f"{what}/{part}" if part in ("train", "test") else name
            board.add_scalar(tag, getattr(row, name), row.epoch)
        board.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def _write(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        replace(self._file, text.getvalue().encode("utf-8"))

    def _writer(self) -> Any:
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._board_folder), purge_step=self._purge)
        return self._board


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV that :class:`Metrics` wrote; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            rows = list(csv.DictReader(file, strict=True))
            whole = all(set(row) == set(COLUMNS) and row["epoch"].isdigit() for row in rows)
        except (csv.Error, UnicodeDecodeError, AttributeError):
            whole = False
    if not whole:
        raise CheckpointError(
            f"{path} is damaged: expected are the columns {', '.join(COLUMNS)}. Move it away, then "
            "--resume goes on without the epochs that it had."
        )
    return rows
