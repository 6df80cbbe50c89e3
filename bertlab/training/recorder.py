"""Callbacks that watch a training: the budget, the metrics and the progress bar."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import lightning
from lightning.pytorch.callbacks import Callback
from tqdm import tqdm

from bertlab.data.batch import Batch
from bertlab.errors import RunFailure
from bertlab.models.flops import training_flops
from bertlab.tasks.pretraining import MaskedLMTask
from bertlab.training.budget import Budget
from bertlab.training.machine import peak_flops


def ends_step(trainer: lightning.Trainer, batch_idx: int) -> bool:
    """Whether the micro-batch was the last one of its optimizer step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def check_finite(name: str, value: float, step: int) -> None:
    """End a run whose loss is not a number any more: no later step can bring it back.

    Raises:
        RunFailure: when ``value`` is infinite or NaN.
    """
    if not math.isfinite(value):
        raise RunFailure(
            f"the training diverged: {name} is {value} at step {step}. Lower optimizer.lr, raise schedule.warmup, or "
            "set optimizer.max_grad_norm; checkpoints/ holds what was saved before"
        )


class BudgetCallback(Callback):
    """Starts and reads the clock, and stops the training when the time is up."""

    def __init__(self, budget: Budget) -> None:
        """Watch ``budget``."""
        self.budget = budget

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start the clock."""
        self.budget.start()

    def on_train_batch_start(self, trainer: lightning.Trainer, *args: Any) -> None:
        """Read the clock at the first micro-batch of every step; all ranks take rank 0's reading."""
        batch_idx = args[-1]
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self.budget.elapsed = trainer.strategy.broadcast(self.budget.tick())

    def on_train_batch_end(self, trainer: lightning.Trainer, *args: Any) -> None:
        """Stop after the step in which the time ran out, never within an accumulation window."""
        if ends_step(trainer, args[-1]) and self.budget.out_of_time:
            trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop the clock: what follows is not part of the training."""
        self.budget.stop()


class MetricsRecorder(Callback):
    """Writes metrics.jsonl, one object per logged step, and hands the same figures to the loggers.

    Training and validation figures of the same step go into one object, so a record is written when the next step
    begins.

    Attributes:
        tokens: real tokens seen so far, without padding.
        last: the last value of every figure.
    """

    def __init__(self, path: Path, budget: Budget, every_n_steps: int, precision: str) -> None:
        """Open the file.

        Args:
            path: metrics.jsonl.
            budget: for the seconds of each record.
            every_n_steps: optimizer steps between two records.
            precision: Lightning's flag, on which the peak speed of a GPU depends.
        """
        self.file: TextIO = path.open("a", encoding="utf-8")
        self.budget = budget
        self.every_n_steps = every_n_steps
        self.precision = precision
        self.peak_flops: float | None = None
        self.tokens = 0
        self.last: dict[str, float] = {}
        self.pending: dict[str, float] = {}
        self._begin_window()

    def _begin_window(self) -> None:
        self.window_start = time.perf_counter()
        self.window_tokens = 0
        self.window_places = 0
        self.window_flops = 0.0

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Find out what the device can do at best."""
        self.peak_flops = peak_flops(pl_module.device, self.precision)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin to count."""
        self._begin_window()

    def on_train_batch_start(self, trainer: lightning.Trainer, *args: Any) -> None:
        """Write what the step before left."""
        self.flush(trainer)

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Count the micro-batch, and compute the figures of a step that is logged, of the first and of the last."""
        assert isinstance(pl_module, MaskedLMTask)
        rows, length = batch.input_ids.shape
        self.tokens += batch.num_tokens
        self.window_tokens += batch.num_tokens
        self.window_places += rows * length
        self.window_flops += training_flops(pl_module.model.config, rows, length, len(batch.masked_positions))
        step = trainer.global_step
        logged = step == 1 or step % self.every_n_steps == 0 or step == trainer.max_steps or trainer.should_stop
        if logged and ends_step(trainer, batch_idx):
            self.record(trainer, self.train_figures(pl_module))
            check_finite("train/loss", self.pending["train/loss"], trainer.global_step)

    def train_figures(self, task: MaskedLMTask) -> dict[str, float]:
        """The figures since the last record; reading the loss waits for the device, so the time is taken afterwards."""
        figures = {"train/loss": float(task.step_loss), "grad_norm": float(task.grad_norm), "lr": task.lr}
        seconds = time.perf_counter() - self.window_start
        figures["tokens_per_second"] = self.window_tokens / seconds
        if self.peak_flops is not None:
            figures["mfu"] = self.window_flops / seconds / self.peak_flops
        figures["padding_share"] = 1.0 - self.window_tokens / self.window_places
        self._begin_window()
        return figures

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Note the time, which does not count as training time."""
        self.validation_start = time.perf_counter()

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Add the validation's figures to the record of the step."""
        assert isinstance(pl_module, MaskedLMTask)
        if trainer.sanity_checking:
            return
        self.window_start += time.perf_counter() - self.validation_start
        self.record(trainer, pl_module.validation)
        check_finite("val/loss", self.pending["val/loss"], trainer.global_step)

    def record(self, trainer: lightning.Trainer, figures: dict[str, float]) -> None:
        """Put figures into the record of the current step."""
        if self.pending and self.pending["step"] != trainer.global_step:
            self.flush(trainer)
        stamp = {"step": trainer.global_step, "tokens": self.tokens, "seconds": round(self.budget.seconds(), 3)}
        self.pending = stamp | self.pending | figures

    def flush(self, trainer: lightning.Trainer) -> None:
        """Write the pending record, if there is one; what is no number is null in JSON."""
        if not self.pending:
            return
        record, self.pending = self.pending, {}  # at once: a signal while it is written must not bring it again
        self.last.update(record)
        written = {name: value if math.isfinite(value) else None for name, value in record.items()}
        self.file.write(json.dumps(written, allow_nan=False) + "\n")
        self.file.flush()
        for logger in trainer.loggers:
            logger.log_metrics(record, step=int(record["step"]))

    def close(self, trainer: lightning.Trainer) -> None:
        """Write what is pending and close the file."""
        self.flush(trainer)
        self.file.close()


class ProgressBar(Callback):
    """A bar over the budget, steps or seconds, with loss, tokens per second and the time that is left.

    Reading the loss waits for the device; so it is shown as of the last record, and the bar costs nothing.
    """

    def __init__(self, recorder: MetricsRecorder, budget: Budget) -> None:
        """Show ``recorder``'s figures over ``budget``."""
        self.recorder = recorder
        self.budget = budget
        self.by_clock = budget.max_seconds is not None
        self.total = 0
        self.bar: tqdm | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Open the bar; one that goes to a file is refreshed twice a minute only."""
        limit, unit = (self.budget.max_seconds, "s") if self.by_clock else (self.budget.max_steps, "steps")
        assert limit is not None
        self.total = round(limit)
        self.bar = tqdm(
            total=self.total,
            desc="training",
            bar_format=f"{{desc}}: {{percentage:3.0f}}%|{{bar:20}}| {{n:.0f}}/{{total:.0f}} {unit} "
            "[{elapsed}<{remaining}{postfix}]",
            mininterval=0.5 if sys.stderr.isatty() else 30.0,
            dynamic_ncols=sys.stderr.isatty(),
        )

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar at the end of a step."""
        if self.bar is None or not ends_step(trainer, batch_idx):
            return
        figures = self.recorder.last
        shown: dict[str, str] = {"step": f"{trainer.global_step:,}"}
        if "train/loss" in figures:
            shown["loss"] = f"{figures['train/loss']:.3f}"
            shown["tokens/s"] = f"{figures['tokens_per_second']:,.0f}"
        if "val/loss" in figures:
            shown["val"] = f"{figures['val/loss']:.3f}"
        self.bar.set_postfix(shown, refresh=False)
        done = self.budget.elapsed if self.by_clock else trainer.global_step
        self.bar.update(min(done, self.total) - self.bar.n)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Close the bar."""
        self.close()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Leave the bar on the screen as it stands."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
