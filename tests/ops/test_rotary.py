"""Rotary positions against their definition: a pair of numbers is a complex number, a position an angle."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertlab.ops.rotary import rotary_tables, rotate

widths = st.integers(1, 8).map(lambda pairs: 2 * pairs)


def by_complex_numbers(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Each pair times e^(i * position * theta^(-2n / d)); ``x`` is [..., i, d] in float64."""
    d = x.shape[-1]
    pairs = torch.complex(x[..., : d // 2], x[..., d // 2 :])
    frequencies = theta ** (-2.0 * torch.arange(d // 2, dtype=torch.float64) / d)
    turned = pairs * torch.exp(1j * positions[:, None] * frequencies)
    return torch.cat([turned.real, turned.imag], dim=-1)


@given(widths, st.integers(1, 40), st.sampled_from([100.0, 10_000.0, 160_000.0]), st.integers(0, 1000))
def test_rotation_is_multiplication_by_a_phase(width: int, length: int, theta: float, seed: int) -> None:
    x = torch.randn(2, 3, length, width, generator=torch.Generator().manual_seed(seed))
    cos, sin = rotary_tables(length, width, theta)
    wanted = by_complex_numbers(x.double(), torch.arange(length, dtype=torch.float64), theta)
    torch.testing.assert_close(rotate(x, cos, sin).double(), wanted, atol=2e-5, rtol=0.0)


@given(widths, st.integers(0, 1000))
def test_lengths_stay_and_scores_depend_on_the_distance_alone(width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, width, generator=generator, dtype=torch.float64)
    cos, sin = rotary_tables(50, width, 10_000.0)
    queries, keys = rotate(q.expand(50, width), cos, sin), rotate(k.expand(50, width), cos, sin)
    torch.testing.assert_close(queries.norm(dim=-1), q.norm().expand(50), atol=1e-5, rtol=0.0)
    scores = queries @ keys.T
    for distance in (0, 1, 7, -3):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(scores[0, 0], q @ k, atol=1e-5, rtol=0.0)


def test_gradient() -> None:
    torch.manual_seed(0)
    cos, sin = (table.double() for table in rotary_tables(5, 6, 100.0))
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotate, (x, cos, sin))
    # What arrives from attention is often a view with other strides.
    strided = torch.randn(2, 5, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x.transpose(1, 2), cos, sin).transpose(1, 2), strided)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 600, 8).to(dtype)
    cos, sin = rotary_tables(600, 8, 10_000.0)
    out = rotate(x, cos, sin)
    assert out.dtype == dtype
    assert torch.equal(out, rotate(x.float(), cos, sin).to(dtype))
