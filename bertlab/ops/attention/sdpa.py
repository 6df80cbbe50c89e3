"""torch's fused scaled_dot_product_attention behind our contract."""

import torch
from torch import Tensor
from torch.nn import functional as F

from bertlab.ops.attention.masks import allowed_pairs
from bertlab.ops.layout import SequenceLayout


def sdpa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: SequenceLayout | None,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    dropout_p: float,
    dropout_seed: int | None,
    window: int | None,
) -> Tensor:
    """softmax(Q K^T * scale + bias) V by a fused kernel; arguments and result as in ``attention``."""
    allowed = allowed_pairs(layout, mask, window, q, k)
    if allowed is None:
        attn_mask = None if bias is None else bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, scale=scale)
    # What the kernels do with a row that may attend to nothing differs between them: such a row attends to everything
    # here and is set to zero afterwards, which zeroes its gradient too.
    attends = allowed.any(dim=-1, keepdim=True)
    attn_mask = allowed | ~attends
    if bias is not None:
        attn_mask = bias.to(q.dtype).masked_fill(~attn_mask, float("-inf"))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, scale=scale)
    return torch.where(attends, out, 0.0)
