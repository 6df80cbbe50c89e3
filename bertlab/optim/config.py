"""Configs of the optimizer and of the learning-rate schedule. Imports no torch."""

from dataclasses import dataclass

from bertlab.errors import check


@dataclass
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101).

    Attributes:
        lr: peak learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled decay, on matrices only (no bias, no norm).
        max_grad_norm: gradients are clipped to this global norm (null: no clipping; the norm is logged all the same).
    """

    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: with all problems in one message.
        """
        problems = []
        if not self.lr > 0:
            problems.append(f"optimizer.lr={self.lr} must be above 0")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                problems.append(f"optimizer.{name}={getattr(self, name)} must be at least 0 and below 1")
        if not self.eps > 0:
            problems.append(f"optimizer.eps={self.eps} must be above 0")
        if not self.weight_decay >= 0:
            problems.append(f"optimizer.weight_decay={self.weight_decay} must not be negative")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            problems.append(f"optimizer.max_grad_norm={self.max_grad_norm} must be above 0 (or null: no clipping)")
        check(problems)


@dataclass
class ScheduleConfig:
    """What every schedule has in common; the budget is that of the trainer, steps or the clock.

    Attributes:
        warmup: share of the budget over which the learning rate rises linearly from 0 to its peak.
    """

    warmup: float = 0.06

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        if 0.0 <= self.warmup <= 1.0:
            return []
        return [f"schedule.warmup={self.warmup} is a share of the budget and must be between 0 and 1"]

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: with all problems in one message.
        """
        check(self.problems())


@dataclass
class ConstantConfig(ScheduleConfig):
    """The peak learning rate after the warm-up, to the end."""


@dataclass
class LinearConfig(ScheduleConfig):
    """Linear decay to 0."""


@dataclass
class CosineConfig(ScheduleConfig):
    """Half a cosine, down to ``final`` times the peak (Loshchilov and Hutter, 2017, arXiv:1608.03983).

    Attributes:
        final: last learning rate as a share of the peak.
    """

    final: float = 0.0

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        if not 0.0 <= self.final <= 1.0:
            found.append(f"schedule.final={self.final} is a share of the peak and must be between 0 and 1")
        return found


@dataclass
class WsdConfig(ScheduleConfig):
    """Warm-up, stable, decay (Hu et al., 2024, arXiv:2404.06395): linear decay to 0 over the last share of the budget.

    Attributes:
        decay: share of the budget over which the learning rate falls.
    """

    decay: float = 0.2

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        if not 0.0 <= self.decay <= 1.0:
            found.append(f"schedule.decay={self.decay} is a share of the budget and must be between 0 and 1")
        elif self.warmup + self.decay > 1.0 + 1e-9:
            found.append(f"schedule.warmup={self.warmup} and schedule.decay={self.decay} add up to more than 1")
        return found


@dataclass
class OneCycleConfig(ScheduleConfig):
    """One cycle with cosine arms (Smith and Topin, 2018, arXiv:1708.07120), as torch's OneCycleLR with its defaults.

    Attributes:
        initial_divisor: the first learning rate is the peak divided by this.
        final_divisor: the last learning rate is the first one divided by this.
    """

    warmup: float = 0.3
    initial_divisor: float = 25.0
    final_divisor: float = 10_000.0

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        for name in ("initial_divisor", "final_divisor"):
            if not getattr(self, name) >= 1.0:
                found.append(f"schedule.{name}={getattr(self, name)} must be at least 1")
        return found
