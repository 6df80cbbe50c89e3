"""Where a token stands in its own sequence, for padded rows and for packed sequences."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertlab.ops import SequenceLayout

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sampled_from([torch.int32, torch.int64]))
def test_packed_positions_start_again_in_every_sequence(lengths: list[int], dtype: torch.dtype) -> None:
    layout = SequenceLayout.packed(torch.tensor([0, *lengths]).cumsum(0).to(dtype))
    assert layout.is_packed
    positions = layout.positions(sum(lengths), CPU)
    assert positions.dtype == torch.int64
    assert positions.tolist() == [position for length in lengths for position in range(length)]
    expected = [number for number, length in enumerate(lengths) for _ in range(length)]
    assert layout.sequence_ids(sum(lengths)).tolist() == expected


@pytest.mark.parametrize("mask", [None, torch.tensor([[1, 1, 0], [0, 1, 1]]), torch.ones(2, 3, dtype=torch.bool)])
def test_padded_positions_are_those_of_the_row(mask: torch.Tensor | None) -> None:
    layout = SequenceLayout.padded(mask)
    assert not layout.is_packed
    assert layout.positions(3, CPU).tolist() == [0, 1, 2]
    if mask is None:
        assert layout.key_mask is None
    else:
        assert layout.key_mask is not None
        assert layout.key_mask.dtype == torch.bool
        assert torch.equal(layout.key_mask, mask != 0)


@pytest.mark.parametrize("mask", [torch.ones(3), torch.ones(2, 3), torch.ones(1, 2, 3, dtype=torch.bool)])
def test_masks_that_are_none(mask: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="attention_mask must"):
        SequenceLayout.padded(mask)


@pytest.mark.parametrize("offsets", [torch.tensor([0]), torch.tensor([0.0, 3.0]), torch.tensor([[0, 3]])])
def test_offsets_that_are_none(offsets: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="cu_seqlens must be"):
        SequenceLayout.packed(offsets)


@pytest.mark.parametrize("offsets", [[1, 3], [0, 4, 2]])
def test_offsets_ascend_from_zero(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="must ascend from 0"):
        SequenceLayout.packed(torch.tensor(offsets))
