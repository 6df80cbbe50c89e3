"""The loss of masked-language modelling, exact per token."""

from torch import Tensor
from torch.nn import functional as F

IGNORED = -100


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
    total = F.cross_entropy(
        logits.float() if logits.element_size() < 4 else logits, labels, ignore_index=IGNORED, reduction="sum"
    )
    if num_masked is None:
        num_masked = (labels != IGNORED).sum().clamp(min=1)
    return total / num_masked
