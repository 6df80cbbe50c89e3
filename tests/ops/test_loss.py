"""The loss over masked tokens: what it is, and that it does not care how a batch is split."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertlab.ops.loss import IGNORED, masked_lm_loss


def make(tokens: int, vocabulary: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, vocabulary, generator=generator, dtype=torch.float64).to(dtype) * 3
    labels = torch.randint(0, vocabulary, (tokens,), generator=generator)
    labels[torch.rand(tokens, generator=generator) < 0.4] = IGNORED
    return logits, labels


@given(st.integers(1, 20), st.integers(2, 9), st.integers(0, 1000))
def test_it_is_the_mean_of_minus_log_probabilities(tokens: int, vocabulary: int, seed: int) -> None:
    logits, labels = make(tokens, vocabulary, seed)
    terms = [-logits[n].softmax(-1)[label].log() for n, label in enumerate(labels.tolist()) if label != IGNORED]
    wanted = sum(terms) / max(len(terms), 1)
    torch.testing.assert_close(masked_lm_loss(logits, labels), torch.as_tensor(wanted, dtype=torch.float64))


@given(st.integers(2, 30), st.lists(st.integers(0, 30), max_size=5), st.integers(0, 1000))
def test_parts_add_up(tokens: int, cuts: list[int], seed: int) -> None:
    logits, labels = make(tokens, 7, seed)
    count = int((labels != IGNORED).sum().clamp(min=1))
    logits.requires_grad_()
    whole = masked_lm_loss(logits, labels)
    edges = [0, *sorted(min(cut, tokens) for cut in cuts), tokens]
    parts = [
        masked_lm_loss(logits[start:stop], labels[start:stop], count)
        for start, stop in zip(edges, edges[1:], strict=False)
    ]
    torch.testing.assert_close(sum(parts), whole, atol=1e-12, rtol=0.0)
    gradients = [torch.autograd.grad(total, logits)[0] for total in (sum(parts), whole)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0.0)


def test_nothing_to_predict_is_zero_not_nan() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    loss = masked_lm_loss(logits, torch.full((4,), IGNORED))
    loss.backward()
    assert loss == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_computed_in_float32_at_least(dtype: torch.dtype) -> None:
    logits, labels = make(300, 50, 0, dtype)
    loss = masked_lm_loss(logits, labels)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(loss.double(), masked_lm_loss(logits.double(), labels), atol=1e-5, rtol=0.0)
    assert masked_lm_loss(logits, labels, torch.tensor(10.0)) == masked_lm_loss(logits, labels, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_loss_and_gradient_are_those_of_torch(dtype):
    torch.manual_seed(0)
    logits = (3 * torch.randn(17, 41)).to(dtype).requires_grad_()
    labels = torch.randint(0, 41, (17,))
    labels[::5] = -100
    loss = masked_lm_loss(logits, labels, 3.0)
    expected = torch.nn.functional.cross_entropy(logits.double(), labels, ignore_index=-100, reduction="sum") / 3.0
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    (got,) = torch.autograd.grad(loss, logits)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(got, wanted, rtol=1e-2 if dtype == torch.bfloat16 else tolerance, atol=tolerance)
    assert got[::5].eq(0).all()


def test_gradient_of_the_loss_by_finite_differences():
    torch.manual_seed(0)
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 6, -100, 3, 3])
    assert torch.autograd.gradcheck(lambda x: masked_lm_loss(x, labels), (logits,))


def test_a_label_that_is_none_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        masked_lm_loss(torch.randn(2, 5), torch.tensor([3, -1]))


def test_second_derivatives_are_refused_not_wrong() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(masked_lm_loss(logits, torch.tensor([0, 1, 2])), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|does not require grad"):
        gradient.square().sum().backward()
