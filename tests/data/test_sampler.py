"""The samplers: what is in which batch, whatever the start, the rank and the order of asking."""

from collections.abc import Iterable
from itertools import islice, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bertlab.data.masking import masked_count
from bertlab.data.sampler import GlobalBatchSampler, MicroBatchPlan, ValidationSampler
from bertlab.errors import UserError

MASKABLE = np.array([0, 1, 5, 30, 126, 126, 77, 10, 3, 126, 64], dtype=np.int32)


def sampler(maskable: np.ndarray = MASKABLE, **changes: Any) -> GlobalBatchSampler:
    options = {"probability": 0.15, "global_batch_size": 8, "micro_batch_size": 2, "seed": 17, "max_steps": 12}
    return GlobalBatchSampler(maskable, **{**options, **changes})


def plain(plans: Iterable[MicroBatchPlan]) -> list[tuple]:
    return [(p.step, p.micro, p.rows.tolist(), p.epochs.tolist(), p.global_masked) for p in plans]


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
@settings(deadline=None)
def test_every_epoch_has_every_row_once(n: int, micro: int, accumulation: int, seed: int) -> None:
    batch = micro * accumulation
    steps = -(-3 * n // batch)
    plans = list(sampler(np.ones(n, int), global_batch_size=batch, micro_batch_size=micro, seed=seed, max_steps=steps))
    assert all(len(plan.rows) == len(plan.epochs) == micro for plan in plans)
    assert [(plan.step, plan.micro) for plan in plans] == [(s, m) for s in range(steps) for m in range(accumulation)]
    epochs = np.concatenate([plan.epochs for plan in plans])
    rows = np.concatenate([plan.rows for plan in plans])
    assert (np.diff(epochs) >= 0).all()
    for epoch in range(3):
        assert sorted(rows[epochs == epoch]) == list(range(n))


@given(st.integers(0, 12))
def test_a_run_that_starts_later_goes_on_identically(start: int) -> None:
    assert plain(sampler(start_step=start)) == plain(sampler())[start * 4 :]


def test_batches_are_a_function_of_seed_and_step_alone() -> None:
    one = sampler()
    expected = [one.global_batch(step)[0].tolist() for step in range(12)]
    other = sampler(rank=1, world_size=2, start_step=9)
    for step in (11, 0, 6, 3, 11, 1):  # any order, across epochs
        assert other.global_batch(step)[0].tolist() == expected[step]
    assert [sampler(seed=18).global_batch(step)[0].tolist() for step in range(12)] != expected


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_micro_batches_of_one_process(world_size: int) -> None:
    whole = plain(sampler())
    shares = [plain(sampler(rank=rank, world_size=world_size)) for rank in range(world_size)]
    merged = [share[k] for k in range(len(shares[0])) for share in shares]
    assert [(step, *rest) for step, _, *rest in merged] == [(step, *rest) for step, _, *rest in whole]
    per_step = 4 // world_size
    assert all([plan[1] for plan in share] == list(range(per_step)) * 12 for share in shares)


def test_global_masked_counts_the_whole_step() -> None:
    for rank in range(2):
        for plan in sampler(rank=rank, world_size=2):
            rows, _ = sampler().global_batch(plan.step)
            assert plan.global_masked == sum(masked_count(int(MASKABLE[row]), 0.15) for row in rows)
    assert {plan.global_masked for plan in sampler(np.zeros(5, int))} == {0}


def test_length_and_end() -> None:
    assert len(sampler()) == len(list(sampler())) == 48
    assert len(sampler(start_step=5, rank=1, world_size=2)) == 14
    assert len(sampler(start_step=20)) == len(list(sampler(start_step=20))) == 0
    endless = sampler(max_steps=None)
    with pytest.raises(TypeError):
        len(endless)
    assert plain(islice(endless, 48)) == plain(sampler())
    assert len(plain(islice(endless, 500))) == 500


def test_every_order_is_equally_likely_over_the_epochs() -> None:
    one_epoch_a_step = sampler(np.ones(4, int), global_batch_size=4)
    orders = [tuple(one_epoch_a_step.global_batch(step)[0].tolist()) for step in range(4800)]
    counts = [orders.count(order) for order in permutations(range(4))]
    assert sum(counts) == 4800
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.global_batch_size=8 .* data.micro_batch_size=2 x 3 processes"):
        sampler(world_size=3)


@pytest.mark.parametrize("batch_size", [1, 4, 11, 50])
def test_validation_goes_through_the_rows_in_order(batch_size: int) -> None:
    validation = ValidationSampler(MASKABLE, probability=0.15, batch_size=batch_size)
    plans = list(validation)
    assert len(plans) == len(validation)
    assert np.concatenate([plan.rows for plan in plans]).tolist() == list(range(11))
    assert all(len(plan.rows) == batch_size for plan in plans[:-1])
    assert all((plan.epochs == 0).all() for plan in plans)
    assert sum(plan.global_masked for plan in plans) == sum(masked_count(int(n), 0.15) for n in MASKABLE)
