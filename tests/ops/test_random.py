"""The stateless generator: published values, and the statistics that masks and shuffles rely on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertlab.ops.random import derive_seed, hash_counters, uniform

KEY = derive_seed(2024, "test")
SEEDS = st.integers(0, 2**63 - 1)


def bits(values: torch.Tensor) -> np.ndarray:
    """[..., 63] zeros and ones, the lowest bit first."""
    return (values.numpy()[..., None] >> np.arange(63)) & 1


def test_the_last_counter_walks_through_splitmix64() -> None:
    # The published first outputs of SplitMix64 for the seed 1234567, without their lowest bit.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert hash_counters(1234567, torch.arange(5)).tolist() == [value >> 1 for value in published]


@given(SEEDS, SEEDS, st.integers(0, 2**62))
def test_hashes_are_63_bits_and_the_order_of_counters_matters(key: int, first: int, second: int) -> None:
    value = int(hash_counters(key, first, second))
    assert 0 <= value < 2**63
    if first != second:
        assert value != int(hash_counters(key, second, first))


def test_counters_broadcast_and_may_be_ints_tensors_and_keys() -> None:
    epochs, rows, positions = torch.arange(3)[:, None, None], torch.arange(4)[:, None], torch.arange(5)
    hashes = hash_counters(KEY, epochs, rows, positions)
    assert hashes.shape == (3, 4, 5)
    assert hashes.dtype == torch.int64
    assert len(hashes.unique()) == 60
    assert int(hashes[2, 1, 3]) == int(hash_counters(KEY, 2, 1, 3))
    assert torch.equal(hash_counters(KEY, 2, rows.int(), positions.int()), hashes[2])
    keys = hash_counters(KEY, torch.arange(3))
    assert torch.equal(
        hash_counters(keys[:, None], positions), torch.stack([hash_counters(int(k), positions) for k in keys])
    )


@given(SEEDS, st.text(), st.lists(st.integers(0, 2**40), max_size=3))
def test_derived_seeds_fit_63_bits_and_depend_on_every_part(seed: int, purpose: str, counters: list[int]) -> None:
    value = derive_seed(seed, purpose, *counters)
    assert 0 <= value < 2**63
    assert value == derive_seed(np.int64(seed), purpose, *map(np.int64, counters))
    assert len({value, derive_seed(seed + 1, purpose, *counters), derive_seed(seed, purpose + "'", *counters)}) == 3
    assert value not in (derive_seed(seed, purpose, *counters, 0), derive_seed(seed, purpose, 7, *counters))


def test_derived_seeds_are_the_same_in_every_process() -> None:
    # Python's own hash of a string would change from one process to the next. A change of these values changes every
    # shuffle and mask of every run.
    assert derive_seed(0, "mask") == 3844837431795920048
    assert derive_seed(1234, "shuffle", 5) == 5458635652042623693


def test_derived_seeds_of_adjacent_seeds_have_unrelated_bits() -> None:
    values = bits(torch.tensor([derive_seed(seed, "mask", n) for seed in range(40) for n in range(100)]))
    assert abs(values.mean() - 0.5) < 4 * 0.5 / np.sqrt(values.size)
    flips = (values[1:] != values[:-1]).mean()
    assert abs(flips - 0.5) < 4 * 0.5 / np.sqrt(values.size)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_numbers_along_any_counter_are_uniform(axis: int) -> None:
    counters = [7, 7, 7]
    draws = uniform(KEY, *counters[:axis], torch.arange(1 << 18), *counters[axis + 1 :]).numpy()
    assert draws.dtype == np.float64
    assert 0.0 <= draws.min() < draws.max() < 1.0
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert stats.chisquare(np.histogram(draws, bins=1024, range=(0, 1))[0]).pvalue > 1e-3
    # The low bits too: random ids are taken modulo the vocabulary's size.
    hashes = hash_counters(KEY, *counters[:axis], torch.arange(1 << 18), *counters[axis + 1 :]).numpy()
    assert stats.chisquare(np.bincount(hashes % 1000)).pvalue > 1e-3


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_numbers_of_adjacent_counters_are_independent(axis: int) -> None:
    counters = [torch.arange(64)[:, None, None], torch.arange(64)[:, None], torch.arange(64)]
    draws = uniform(KEY, *counters).numpy()
    here = np.delete(draws, -1, axis).ravel()
    next_one = np.delete(draws, 0, axis).ravel()
    table = np.histogram2d(here, next_one, bins=16, range=[(0, 1), (0, 1)])[0]
    assert stats.chi2_contingency(table).pvalue > 1e-3
    assert abs(np.corrcoef(here, next_one)[0, 1]) < 4 / np.sqrt(len(here))


@pytest.mark.parametrize("part", ["key", "first counter", "last counter"])
def test_flipping_any_input_bit_flips_each_output_bit_half_the_time(part: str) -> None:
    generator = np.random.default_rng(0)
    trials = 4096
    key, first, last = (torch.from_numpy(generator.integers(0, 2**62, trials)) for _ in range(3))
    before = bits(hash_counters(key, first, last))
    for bit in range(62):
        flip = {part: 1 << bit}
        after = hash_counters(
            key ^ flip.get("key", 0), first ^ flip.get("first counter", 0), last ^ flip.get("last counter", 0)
        )
        rates = (bits(after) != before).mean(axis=0)
        # Six standard deviations: there are 62 x 63 rates to look at.
        assert np.abs(rates - 0.5).max() < 6 * 0.5 / np.sqrt(trials)


def test_small_keys_and_counters_do_not_collide() -> None:
    grid = torch.arange(100)
    hashes = torch.stack([hash_counters(key, grid[:, None], grid) for key in range(50)])
    assert len(hashes.unique()) == 50 * 100 * 100
