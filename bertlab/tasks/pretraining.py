"""Masked-language modelling as a LightningModule."""

import math
from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from bertlab.data.batch import Batch
from bertlab.models.bert import BertForMaskedLM
from bertlab.ops.loss import IGNORED
from bertlab.ops.random import derive_seed
from bertlab.optim import build_optimizer, lr_factor
from bertlab.optim.config import OptimizerConfig, ScheduleConfig


class MaskedLMTask(lightning.LightningModule):
    """Trains ``BertForMaskedLM`` on batches of ``bertlab.data`` (Devlin et al., 2019, section 3.1; no next sentences).

    Attributes:
        step_loss: loss of the global batch of the current step so far, in nats per predicted token; a scalar tensor.
        grad_norm: norm of the last gradient, over all parameters, before clipping; a scalar tensor.
        lr: learning rate of the last optimizer step.
        validation: figures of the last validation: ``val/loss`` in nats per predicted token, ``val/perplexity`` and
            ``val/masked_accuracy``.
    """

    def __init__(
        self,
        model: BertForMaskedLM,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        *,
        seed: int,
        progress: Callable[[int], float],
        fused: bool | None = None,
    ) -> None:
        """Put model and recipe together.

        Args:
            model: the model to train.
            optimizer: AdamW's settings.
            schedule: course of the learning rate over the budget.
            seed: of the run; dropout is reseeded from it for every micro-batch.
            progress: from the number of finished optimizer steps to the share of the budget that is used, in [0, 1].
            fused: whether AdamW runs as one kernel; None: where it can.
        """
        super().__init__()
        self.model = model
        self.optimizer_config = optimizer
        self.schedule_config = schedule
        self.seed = seed
        self.progress = progress
        self.fused = fused
        self.step_loss = torch.zeros(())
        self.grad_norm = torch.zeros(())
        self.lr = 0.0
        self.validation: dict[str, float] = {}
        self._val_sums = torch.zeros(3, dtype=torch.float64)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW. Its learning rate is set before every step: there is no scheduler with a state of its own."""
        return build_optimizer(self.model, self.optimizer_config, fused=self.fused)

    def on_fit_start(self) -> None:
        """Switch dropout on: Lightning leaves a model in the mode in which it finds it."""
        self.model.train()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Forward pass of one micro-batch.

        Args:
            batch: the micro-batch.
            batch_idx: its number since the start.

        Returns:
            The summed loss over the number of masked tokens in the global batch, times the number of parts
            (micro-batches and ranks) over which Lightning and DDP average: the parts' gradients add up to that of the
            global batch.
        """
        accumulation = self.trainer.accumulate_grad_batches
        micro = batch_idx % accumulation
        torch.manual_seed(derive_seed(self.seed, "dropout", self.global_step, micro, self.global_rank))
        parts = accumulation * self.trainer.world_size
        loss = self.model(
            batch.input_ids,
            batch.attention_mask,
            labels=batch.labels,
            masked_positions=batch.masked_positions,
            num_masked=max(batch.global_masked, 1) / parts,
        ).loss
        share = loss.detach() / accumulation
        self.step_loss = share if micro == 0 else self.step_loss + share
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate of this step, a pure function of the progress."""
        self.lr = self.optimizer_config.lr * lr_factor(self.schedule_config, self.progress(self.global_step))
        for group in optimizer.param_groups:
            group["lr"] = self.lr

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip the gradient by its global norm, and keep the norm for the log."""
        limit = self.optimizer_config.max_grad_norm
        self.grad_norm = clip_grad_norm_(self.model.parameters(), math.inf if limit is None else limit)

    def on_validation_epoch_start(self) -> None:
        """Begin a validation."""
        self._val_sums = torch.zeros(3, dtype=torch.float64)  # on the CPU: not every device has float64

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add up loss, hits and predicted tokens of one batch; they are divided once, at the end."""
        out = self.model(
            batch.input_ids,
            batch.attention_mask,
            labels=batch.labels,
            masked_positions=batch.masked_positions,
            num_masked=1.0,
        )
        hits = (out.logits.argmax(dim=-1) == batch.labels).sum()
        count = (batch.labels != IGNORED).sum()
        self._val_sums += torch.stack([out.loss, hits.to(out.loss.dtype), count.to(out.loss.dtype)]).cpu().double()

    def on_validation_epoch_end(self) -> None:
        """Divide the sums: means over masked tokens, whatever the batch size."""
        loss, hits, count = self._val_sums.tolist()
        count = max(count, 1.0)
        self.validation = {
            "val/loss": loss / count,
            "val/perplexity": math.exp(min(loss / count, 700.0)),
            "val/masked_accuracy": hits / count,
        }
