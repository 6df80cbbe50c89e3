"""The loss of masked-language modelling, exact per token."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100


class _SummedCrossEntropy(torch.autograd.Function):
    """Cross-entropy, summed, with its gradient ``softmax(logits) - one_hot(labels)`` written out.

    With a large vocabulary the logits are the largest tensor of a small model; this passes over them half as often as
    torch's two functions, which fill a gradient of zeros between them.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        log_probabilities = logits.log_softmax(dim=-1)  # [m, v]
        counts = labels != IGNORED
        targets = torch.where(counts, labels, 0)[:, None]
        ctx.save_for_backward(log_probabilities, targets, counts)
        return -torch.where(counts, log_probabilities.gather(1, targets).squeeze(1), 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        log_probabilities, targets, counts = ctx.saved_tensors
        grad = log_probabilities.exp()
        grad.scatter_add_(1, targets, torch.full_like(targets, -1, dtype=grad.dtype))
        return grad.mul_((grads[0] * counts)[:, None]), None


def masked_lm_loss(logits: Tensor, labels: Tensor, num_masked: Tensor | float | None = None) -> Tensor:
    """Cross-entropy summed over the predicted tokens and divided by a count that the caller may know better.

    Dividing by the count of the whole global batch makes the loss, and the gradient, independent of how the batch was
    split into micro-batches and ranks: the parts simply add up.

    Args:
        logits: ``[m, v]``.
        labels: int64 ``[m]``; positions with -100 count for nothing.
        num_masked: what to divide by; None: the number of labels that are not -100 (at least 1).

    Returns:
        A scalar in nats, in float32 at least.
    """
    total = _SummedCrossEntropy.apply(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels)
    if num_masked is None:
        num_masked = (labels != IGNORED).sum().clamp(min=1)
    return total / num_masked
