"""The training loop: steps, validation, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.data import Dataset
from capsnet_loma.data.batches import Batch, Batches, in_order
from capsnet_loma.evaluation.evaluate import outcomes
from capsnet_loma.evaluation.model import Model
from capsnet_loma.training import TrainingError, checkpoint, engines
from capsnet_loma.training.checkpoint import Checkpoint, CheckpointError
from capsnet_loma.training.distributed import Job
from capsnet_loma.training.metrics import Metrics, Row
from capsnet_loma.training.outcome import Outcome
from capsnet_loma.training.run import Run
from capsnet_loma.training.settings import Settings
from capsnet_loma.training.signals import Stop
from capsnet_loma.training.warm_up import warm_up

EVALUATED = 100  # images at a time in validation

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Sums:
    """What the steps of an epoch add up to, over all processes; ``seconds`` of this process."""

    images: float = 0.0
    loss: float = 0.0
    right: float = 0.0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        if not self.images:
            return ""
        return (
            f"loss {self.loss / self.images:.4f}, accuracy {self.right / self.images:.2%}, "
            f"{self.images / self.seconds:,.0f} images/s"
        )


@dataclass(slots=True)
class Trainer:
    """A training at a certain step.

    A run that is interrupted and continued from a checkpoint makes the same numbers as one that is
    not: order and shifts of the images are functions of seed, epoch and step.
    """

    settings: Settings
    config: CapsNetConfig
    data: Dataset
    job: Job
    epoch: int = 0
    step: int = 0
    sums: Sums = field(default_factory=Sums)
    seconds: float = 0.0
    best: dict[str, float] = field(default_factory=dict)
    model: Model = field(init=False)
    optimiser: torch.optim.Optimizer = field(init=False)
    scheduler: torch.optim.lr_scheduler.LRScheduler = field(init=False)
    batches: Batches = field(init=False)
    _digest: str = field(init=False)
    _network: torch.nn.Module = field(init=False)
    _late: bool = field(init=False)  # whether a step's numbers are read behind the next one
    _last: Outcome | None = None  # of the step before, where self.sums do not have it yet

    def __post_init__(self) -> None:
        s = self.settings
        self._digest = self.data.digest
        self._late = self.job.device.type != "cpu"
        torch.manual_seed(s.seed)
        network = engines.network(s.engine, self.config).to(self.job.device)
        self.model = Model(s.engine, network)
        self._network = network
        self.optimiser = engines.optimiser(s, network.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimiser, s.decay)
        self.batches = Batches(
            self.data.train,
            self.data.classes,
            s.batch,
            seed=s.seed,
            shift=s.shift,
            rank=self.job.rank,
            world=self.job.world,
            device=self.job.device,
        )

    # ------------------------------------------------------------------------------- checkpoints

    def restore(self, found: Checkpoint, source: Path | None) -> None:
        """Goes to the state of a checkpoint. Raises CheckpointError where it does not fit."""
        if found.data != self._digest:
            raise CheckpointError(
                f"{source} was trained on other images than those of '{self.data.name}'. Give the "
                "same ones with --data."
            )
        try:
            self.model.network.load_state_dict(found.model)
            self.optimiser.load_state_dict(found.optimiser)
            self.scheduler.load_state_dict(found.scheduler)
            torch.set_rng_state(found.generator)
            self.sums = Sums(**found.sums)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{source} does not fit the network: {reason}") from error
        if not (found.epoch >= 0 and 0 <= found.step <= self.batches.steps):
            raise CheckpointError(
                f"{source} stands at step {found.step} of epoch {found.epoch}, but an epoch has "
                f"{self.batches.steps} steps."
            )
        self.epoch, self.step = found.epoch, found.step
        self.seconds, self.best = found.seconds, dict(found.best)

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            engine=self.settings.engine,
            config=self.config,
            settings=asdict(self.settings),
            data=self._digest,
            model=_on_cpu(self.model.network.state_dict()),
            optimiser=_on_cpu(self.optimiser.state_dict()),
            scheduler=self.scheduler.state_dict(),
            epoch=self.epoch,
            step=self.step,
            sums=asdict(self.sums),
            seconds=self.seconds,
            best=self.best,
            generator=torch.get_rng_state(),
        )

    def save(self, run: Run) -> None:
        """The main process writes it. Raises TrainingError instead where a weight is no number."""
        if self.job.is_main:
            self._check_weights(run)
            checkpoint.write(run.last, self.checkpoint())

    def _check_weights(self, run: Run) -> None:
        """A loss is finite where the gradients overflow: what that leaves must not take the place
        of the last checkpoint from which training can go on."""
        for name, weight in self.model.network.state_dict().items():
            if not bool(weight.isfinite().all()):
                raise self._diverged(
                    f"{name} has values that are no finite numbers", run, self.step
                )

    # ------------------------------------------------------------------------------------- steps

    def prepare(self, progress: Progress) -> None:
        """Makes all kernels; see :mod:`capsnet_loma.training.warm_up`.

        Raises TrainingError where the processes have different images.
        """
        if self.job.from_main(lambda: self._digest) != self._digest:
            raise TrainingError(
                f"process {self.job.rank} has other images in '{self.data.name}' than process 0. "
                "Give all machines the same ones."
            )
        share = self.settings.batch // self.job.world
        tested = list(map(len, self._tested()))
        if self.settings.engine == "loma":
            with self.job.one_of_each_machine_first():
                warm_up(self.model, self.settings, share, tested, progress)
        self._network = self.job.wrapped(self.model.network)

    def epochs(
        self,
        run: Run,
        metrics: Metrics | None,
        stop: Stop,
        every: int,
        progress: Callable[[int], Any],
    ) -> Iterator[Row]:
        """Trains; gives the numbers of each epoch as it ends, and ends early when ``stop`` says so.

        ``every`` so many steps, and after each epoch, a checkpoint is written. ``progress(epoch)``
        is a context manager that gives the epoch's progress function.
        """
        while self.epoch < self.settings.epochs:
            if self.job.sum([float(stop.number != 0)]) != [0.0]:
                return
            with progress(self.epoch + 1) as update:
                if not self._steps(run, stop, every, update):
                    return
                row = self._validated(update)
            if not math.isfinite(row.test_loss):
                raise self._diverged(f"the test loss is {row.test_loss}", run, self.step)
            if self.job.is_main:
                self._check_weights(run)
            self._end_epoch(row)
            if metrics is not None:
                metrics.add(row)
            self._save_epoch(row, run)
            yield row

    def _steps(self, run: Run, stop: Stop, every: int, update: Progress) -> bool:
        """The rest of an epoch; False when it was stopped, at a checkpoint."""
        update("", self.step, self.batches.steps)
        for batch in self.batches.epoch(self.epoch, self.step):
            stopped = self._step(batch, stop, run)
            update(self.sums.text, self.step, self.batches.steps)
            kept = self.step % every == 0 and self.step < self.batches.steps
            if stopped or kept:
                self._catch_up(run)
                self.save(run)
            if stopped:
                return False
        self._catch_up(run)
        return True

    def _step(self, batch: Batch, stop: Stop, run: Run) -> bool:
        """One step; whether any of the processes is asked to stop.

        A GPU is given the whole step before the numbers of the one before it are read: it never
        waits for the host. Parameters may have become worse by a step when that is found out, but
        no checkpoint is written before.
        """
        start = time.perf_counter()
        self.optimiser.zero_grad(set_to_none=True)
        with self.job.reporting():
            capsules, reconstruction = self._network(batch.images, batch.targets)
            loss = self.model.loss(batch.images, batch.targets, capsules, reconstruction)
            loss.backward()
        with torch.no_grad():
            right = self._right(capsules.detach(), batch.labels)
        own = Outcome.of(self.step + 1, len(batch), loss, right)
        if not self._late:
            stopped = self._count(own, run, stop)
            self.optimiser.step()
        else:
            self.optimiser.step()
            stopped = self._count(self._last, run, stop)
            self._last = own
        self.sums.seconds += time.perf_counter() - start
        self.step += 1
        return stopped

    def _catch_up(self, run: Run) -> None:
        """Waits for the last step; afterwards the sums have all of them."""
        start = time.perf_counter()
        if self._last is not None:
            self._count(self._last, run)
            self._last = None
        self.sums.seconds += time.perf_counter() - start

    def _count(self, found: Outcome | None, run: Run, stop: Stop | None = None) -> bool:
        """Adds what a step of all processes came to; whether any of them is asked to stop.

        Raises TrainingError where the loss is no number.
        """
        loss, own_right = (0.0, 0.0) if found is None else found.read()
        count = 0 if found is None else found.images
        asked = stop is not None and stop.number != 0
        images, total, right, stopped = self.job.sum([count, loss * count, own_right, float(asked)])
        if found is not None and not math.isfinite(total):
            raise self._diverged(f"the loss is {total / images}", run, found.step)
        s = self.sums
        s.images, s.loss, s.right = s.images + images, s.loss + total, s.right + right
        return stopped > 0

    def _diverged(self, what: str, run: Run, step: int) -> TrainingError:
        kept = f"{run.last} is from before" if run.last.exists() else "there is no checkpoint yet"
        return TrainingError(
            f"{what} in epoch {self.epoch + 1}, step {step}; {kept}. Train anew with a "
            "smaller --lr."
        )

    def _right(self, capsules: Tensor, labels: Tensor) -> Tensor:
        predicted = self.model.lengths(capsules).argmax(dim=1)
        return (predicted == labels).sum()

    # -------------------------------------------------------------------------------- validation

    def _tested(self) -> Iterator[Batch]:
        j = self.job
        return in_order(
            self.data.test,
            self.data.classes,
            EVALUATED,
            rank=j.rank,
            world=j.world,
            device=j.device,
        )

    def _validated(self, update: Progress) -> Row:
        """The numbers of the epoch that has just been trained."""
        count = loss = right = 0.0
        update(f"{self.sums.text}; validation", self.step, self.batches.steps)
        for part, part_loss, predicted in outcomes(self.model, self._tested()):
            count += len(part)
            loss += part_loss * len(part)
            right += float((predicted == part.labels).sum())
        count, loss, right = self.job.sum([count, loss, right])
        s = self.sums
        return Row(
            epoch=self.epoch + 1,
            step=(self.epoch + 1) * self.batches.steps,
            seconds=self.seconds + s.seconds,
            learning_rate=float(cast(float, self.scheduler.get_last_lr()[0])),
            train_loss=s.loss / s.images,
            train_accuracy=s.right / s.images,
            test_loss=loss / count,
            test_accuracy=right / count,
            images_per_second=s.images / s.seconds,
        )

    def _end_epoch(self, row: Row) -> None:
        self.scheduler.step()
        self.epoch, self.step = self.epoch + 1, 0
        self.seconds, self.sums = row.seconds, Sums()
        found = (row.test_accuracy, -row.test_loss)
        if not self.best or found > (self.best["accuracy"], -self.best["loss"]):
            self.best = {
                "epoch": row.epoch, "accuracy": row.test_accuracy, "loss": row.test_loss,
            }  # fmt: skip

    def _save_epoch(self, row: Row, run: Run) -> None:
        """The best one first: killed in between, the epoch is done again, with the same result."""
        if not self.job.is_main:
            return
        if self.best["epoch"] == row.epoch:
            checkpoint.write(run.best, self.checkpoint())
            checkpoint.link(run.best, run.last)
        else:
            self.save(run)


def _on_cpu(state: Any) -> Any:
    """The same state with its tensors on the CPU, so that a checkpoint loads on any machine."""
    if isinstance(state, Tensor):
        return state.cpu()
    if isinstance(state, Mapping):
        return {key: _on_cpu(value) for key, value in state.items()}
    return state
