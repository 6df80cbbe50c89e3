"""Schedules against transformers' and torch's own, and the properties that all of them have."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from transformers.optimization import (
    get_constant_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from bertlab.optim.config import (
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    OneCycleConfig,
    ScheduleConfig,
    WsdConfig,
)
from bertlab.optim.schedules import SCHEDULES, lr_factor

STEPS = [(10, 100), (0, 7), (1, 2), (3, 50), (33, 97), (100, 1000)]  # warm-up, all


def sgd(lr: float = 1.0) -> SGD:
    return SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)


def rates(scheduler: LRScheduler, steps: int) -> list[float]:
    """The learning rate of every step, and the one after the last."""
    found = []
    for _ in range(steps + 1):
        found.append(float(scheduler.get_last_lr()[0]))
        scheduler.optimizer.step()
        scheduler.step()
    return found


def ours(config: ScheduleConfig, steps: int) -> list[float]:
    return [lr_factor(config, step / steps) for step in range(steps + 1)]


@pytest.mark.parametrize(("warmup", "steps"), STEPS)
def test_constant_as_transformers(warmup, steps):
    theirs = rates(get_constant_schedule_with_warmup(sgd(), warmup), steps)
    assert ours(ConstantConfig(warmup / steps), steps) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(("warmup", "steps"), STEPS)
def test_linear_as_transformers(warmup, steps):
    theirs = rates(get_linear_schedule_with_warmup(sgd(), warmup, steps), steps)
    assert ours(LinearConfig(warmup / steps), steps) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("warmup", "steps"), STEPS)
def test_cosine_as_transformers(warmup, steps, final):
    theirs = rates(get_cosine_with_min_lr_schedule_with_warmup(sgd(), warmup, steps, min_lr_rate=final), steps)
    assert ours(CosineConfig(warmup / steps, final), steps) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(
    ("warmup", "decay", "steps"), [(10, 20, 100), (0, 3, 7), (1, 1, 2), (3, 47, 50), (33, 1, 97), (100, 200, 1000)]
)
def test_wsd_as_transformers(warmup, decay, steps):
    theirs = rates(get_wsd_schedule(sgd(), warmup, decay, num_training_steps=steps, decay_type="linear"), steps)
    assert ours(WsdConfig(warmup / steps, decay / steps), steps) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(("first", "last"), [(25.0, 1e4), (10.0, 1.0), (1.0, 100.0)])
@pytest.mark.parametrize(("warmup", "steps"), [(30, 100), (1, 7), (33, 97), (900, 1000)])
def test_one_cycle_as_torch(warmup, steps, first, last):
    scheduler = OneCycleLR(
        sgd(),
        max_lr=1.0,
        total_steps=steps + 1,
        pct_start=(warmup + 1) / (steps + 1),
        div_factor=first,
        final_div_factor=last,
        cycle_momentum=False,
    )
    theirs = rates(scheduler, steps)
    assert ours(OneCycleConfig(warmup / steps, first, last), steps) == pytest.approx(theirs, abs=1e-12)


shares = st.floats(0.0, 1.0)
wide = st.floats(0.01, 0.98)  # phases wide enough for a slope to be measured


@st.composite
def schedules(draw, share=shares) -> ScheduleConfig:
    """Any schedule; with ``share=wide`` no phase is empty or too narrow to follow."""
    warmup = draw(share)
    kind = draw(st.sampled_from(list(SCHEDULES)))
    if kind is CosineConfig:
        return CosineConfig(warmup, draw(shares))
    if kind is WsdConfig:
        return WsdConfig(warmup, (1.0 - warmup) * draw(share))
    if kind is OneCycleConfig:
        return OneCycleConfig(warmup, draw(st.floats(1.0, 1e6)), draw(st.floats(1.0, 1e6)))
    return kind(warmup)


@given(schedules(), shares)
@example(LinearConfig(1.0), 1.0)
@example(OneCycleConfig(0.0), 0.0)
@example(WsdConfig(5e-324, 1.0), 0.5)
def test_factors_lie_between_0_and_1(config, progress):
    assert 0.0 <= lr_factor(config, progress) <= 1.0


@given(schedules(), st.floats(allow_nan=False))
def test_outside_the_budget_the_ends_hold(config, progress):
    nearest = min(max(progress, 0.0), 1.0)
    assert lr_factor(config, progress) == lr_factor(config, nearest)


def narrowest_phase(config: ScheduleConfig) -> float:
    widths = [config.warmup, 1.0 - config.warmup]
    if isinstance(config, WsdConfig):
        widths.append(config.decay)
    return min(widths)


@given(schedules(wide), shares, st.floats(0.0, 1e-6))
def test_no_jumps(config, progress, distance):
    """No schedule is steeper than half a cosine over its narrowest phase, pi / 2 over the width."""
    step = abs(lr_factor(config, progress + distance) - lr_factor(config, progress))
    assert step <= distance * math.pi / 2 / narrowest_phase(config) + 1e-12


@given(schedules(wide), shares, shares)
def test_rises_to_the_peak_then_never_again(config, first, second):
    early, late = min(first, second), max(first, second)
    assert lr_factor(config, config.warmup) == pytest.approx(1.0)
    assert lr_factor(config, early * config.warmup) <= lr_factor(config, late * config.warmup) + 1e-12
    rest = 1.0 - config.warmup
    after = [lr_factor(config, config.warmup + share * rest) for share in (early, late)]
    assert after[0] >= after[1] - 1e-12


@given(schedules(wide))
def test_both_ends(config):
    starts = 1.0 / config.initial_divisor if isinstance(config, OneCycleConfig) else 0.0
    assert lr_factor(config, 0.0) == pytest.approx(starts)
    ends = {
        ConstantConfig: lambda _: 1.0,
        LinearConfig: lambda _: 0.0,
        CosineConfig: lambda config: config.final,
        WsdConfig: lambda _: 0.0,
        OneCycleConfig: lambda config: 1.0 / config.initial_divisor / config.final_divisor,
    }
    assert lr_factor(config, 1.0) == pytest.approx(ends[type(config)](config), abs=1e-12)


@given(st.sampled_from(list(SCHEDULES)))
def test_without_warm_up_the_peak_comes_first(kind):
    assert lr_factor(kind(warmup=0.0), 0.0) == 1.0


@given(shares)
def test_without_decay_the_peak_stays(progress):
    assert lr_factor(WsdConfig(0.1, 0.0), progress) == lr_factor(ConstantConfig(0.1), progress)


@dataclass
class UnlistedConfig(ScheduleConfig):
    """A schedule that nobody implemented."""


def test_a_class_outside_the_table_is_refused():
    with pytest.raises(KeyError, match="UnlistedConfig"):
        lr_factor(UnlistedConfig(), 0.5)
