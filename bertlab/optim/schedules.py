"""Learning-rate schedules: pure functions of the share of the budget that is spent.

In steps, ``progress`` is the number of optimizer steps already taken over ``max_steps``, so step ``k`` (from 0) runs at
the factor that transformers' schedulers give for step ``k``; by the clock it is elapsed time over ``max_time``. A phase
whose share of the budget is 0 does not happen: without warm-up a run starts at the peak, without decay it stays there.
"""

import math
from collections.abc import Callable
from typing import Any

from bertlab.optim.config import (
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    OneCycleConfig,
    ScheduleConfig,
    WsdConfig,
)


def ramp(part: float, width: float) -> float:
    """The spent share of a phase: ``part / width``, at most 1; 1 for a phase of no width."""
    return 1.0 if part >= width else part / width


def cosine(start: float, end: float, share: float) -> float:
    """Half a cosine from ``start`` (at share 0) to ``end`` (at share 1)."""
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2.0


def constant_factor(config: ConstantConfig, progress: float) -> float:
    """Warm-up, then the peak."""
    return ramp(progress, config.warmup)


def linear_factor(config: LinearConfig, progress: float) -> float:
    """Warm-up, then a line down to 0."""
    return min(ramp(progress, config.warmup), ramp(1.0 - progress, 1.0 - config.warmup))


def cosine_factor(config: CosineConfig, progress: float) -> float:
    """Warm-up, then half a cosine down to ``config.final``."""
    decay = 1.0 - ramp(1.0 - progress, 1.0 - config.warmup)
    return ramp(progress, config.warmup) * cosine(1.0, config.final, decay)


def wsd_factor(config: WsdConfig, progress: float) -> float:
    """Warm-up, the peak, then a line down to 0 over the last ``config.decay``."""
    return min(ramp(progress, config.warmup), ramp(1.0 - progress, config.decay))


def one_cycle_factor(config: OneCycleConfig, progress: float) -> float:
    """Half a cosine up to the peak, then half a cosine down; only the learning rate cycles, not the momentum.

    torch's ``OneCycleLR(total_steps=N, pct_start=q)`` has its peak at step ``q N - 1`` and its end at step ``N - 1``;
    it gives the same figures at step ``k`` for ``N = max_steps + 1`` and ``q = (warmup * max_steps + 1) / N``.
    """
    first = 1.0 / config.initial_divisor
    if progress < config.warmup:
        return cosine(first, 1.0, ramp(progress, config.warmup))
    return cosine(1.0, first / config.final_divisor, 1.0 - ramp(1.0 - progress, 1.0 - config.warmup))


# The functions take their own config class, hence Any.
SCHEDULES: dict[type[ScheduleConfig], Callable[[Any, float], float]] = {
    ConstantConfig: constant_factor,
    LinearConfig: linear_factor,
    CosineConfig: cosine_factor,
    WsdConfig: wsd_factor,
    OneCycleConfig: one_cycle_factor,
}


def lr_factor(config: ScheduleConfig, progress: float) -> float:
    """The learning rate as a share of its peak.

    Args:
        config: one of the schedules.
        progress: spent share of the budget; what lies outside [0, 1] counts as the nearer end.

    Returns:
        A factor in [0, 1].

    Raises:
        KeyError: when the config's class is not in ``SCHEDULES``.
    """
    return SCHEDULES[type(config)](config, min(max(progress, 0.0), 1.0))
