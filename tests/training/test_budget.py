"""Budgets of steps and of the clock, with a clock that the test moves."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import bertlab.training.run as run_module
from bertlab.data.batch import Batch
from bertlab.optim import lr_factor
from bertlab.optim.config import LinearConfig
from bertlab.tasks.pretraining import MaskedLMTask
from bertlab.training.budget import Budget
from bertlab.training.config import RunConfig
from bertlab.training.run import run


class Clock:
    """Stands still until a training step moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every budget; each micro-batch takes 2 seconds."""
    clock = Clock()
    monkeypatch.setattr(run_module, "Budget", partial(Budget, clock=clock))
    training_step = MaskedLMTask.training_step

    def slow_step(self: MaskedLMTask, batch: Batch, batch_idx: int) -> torch.Tensor:
        clock.now += 2.0
        return training_step(self, batch, batch_idx)

    monkeypatch.setattr(MaskedLMTask, "training_step", slow_step)
    return clock


def records_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_progress_follows_steps_or_the_clock() -> None:
    clock = Clock()
    steps = Budget(max_steps=8, max_seconds=None, clock=clock)
    assert [steps.progress(step) for step in (0, 2, 8, 9)] == [0.0, 0.25, 1.0, 1.0]
    assert not steps.out_of_time

    timed = Budget(max_steps=8, max_seconds=10.0, clock=clock)
    assert timed.tick() == 0.0  # it has not begun
    timed.start()
    clock.now += 2.5
    assert timed.progress(8) == 0.0  # not before the clock is read
    assert timed.tick() == 2.5
    assert timed.progress(8) == 0.25
    clock.now += 7.5
    assert not timed.out_of_time
    timed.tick()
    assert timed.out_of_time
    clock.now += 5.0
    timed.stop()
    clock.now += 100.0
    assert timed.tick() == timed.elapsed == 15.0
    assert timed.progress(0) == 1.0


def test_clock_decides_schedule_and_end(clock: Clock, tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    config = tiny_config(
        tmp_path / "run",
        "trainer.max_steps=null",
        "trainer.max_time=00:00:00:18",
        "trainer.log_every_n_steps=1",
        "trainer.val_every_n_steps=null",
        "schedule.warmup=0.5",
    )
    assert config.data.global_batch_size // config.data.micro_batch_size == 2  # so a step takes 4 seconds
    result = run(config, name="tiny", overrides=[])
    records = [record for record in records_of(result.run_dir) if "lr" in record]
    # Steps begin at 0, 4, ... 20 s; the one that finds the time used up is the last. It is complete.
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert result.summary["steps"] == 6
    assert result.summary["seconds"] == 24.0
    starts = [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]
    expected = [config.optimizer.lr * lr_factor(LinearConfig(warmup=0.5), start / 18.0) for start in starts]
    assert [record["lr"] for record in records] == pytest.approx(expected)
    assert [record["seconds"] for record in records] == [start + 4.0 for start in starts]


def test_steps_cap_the_clock(clock: Clock, tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    config = tiny_config(tmp_path / "run", "trainer.max_steps=3", "trainer.max_time=00:01:00:00")
    result = run(config, name="tiny", overrides=[])
    assert result.summary["steps"] == 3
    last = records_of(result.run_dir)[-1]
    assert last["lr"] == pytest.approx(config.optimizer.lr * lr_factor(config.schedule, 8.0 / 3600.0))


def test_clock_is_read_once_a_step(clock: Clock, tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    config = tiny_config(
        tmp_path / "run",
        "trainer.max_steps=40",
        "trainer.max_time=00:01:00:00",
        "trainer.log_every_n_steps=40",
        "trainer.val_every_n_steps=null",
    )
    run(config, name="tiny", overrides=[])
    # Once at the start, once at each step, once for each of the two records, once at the end of the training.
    assert clock.reads == 1 + 40 + 2 + 1


@pytest.mark.parametrize("max_steps", [1, 5])
def test_steps_alone(max_steps: int, tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    config = tiny_config(tmp_path / "run", f"trainer.max_steps={max_steps}", "trainer.log_every_n_steps=1")
    result = run(config, name="tiny", overrides=[])
    records = [record for record in records_of(result.run_dir) if "lr" in record]
    assert [record["step"] for record in records] == list(range(1, max_steps + 1))
    expected = [config.optimizer.lr * lr_factor(config.schedule, step / max_steps) for step in range(max_steps)]
    assert [record["lr"] for record in records] == pytest.approx(expected)
