"""The textbook formula, softmax(Q K^T / sqrt(d_k)) V (Vaswani et al., 2017, arXiv:1706.03762, equation 1).

It supports everything and serves as the oracle for the other backends. Axes: ``b`` batch, ``h`` heads, ``i`` query
position, ``j`` key position, ``d`` head width, ``t`` packed tokens.
"""

import torch
from einops import einsum, rearrange
from torch import Tensor

from bertlab.ops.attention.masks import allowed_pairs
from bertlab.ops.layout import SequenceLayout
from bertlab.ops.random import uniform


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    layout: SequenceLayout | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """The weights softmax(Q K^T * scale + bias), before dropout: how much query ``i`` takes from key ``j``.

    Args:
        q: queries ``[b, h, i, d]``.
        k: keys ``[b, h, j, d]``.
        layout: padding, or packing of ``b = 1`` row of ``t`` tokens.
        mask: who may be attended to, see ``attention``.
        bias: added to the scaled scores, broadcastable to ``[b, h, i, j]``.
        scale: factor of the scores; None: ``1 / sqrt(d)``.
        window: total width of a sliding window, in tokens; None: no window.

    Returns:
        ``[b, h, i, j]``, in float32 at least; each row sums to 1, or to 0 where the query may attend to nothing.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = einsum(q * scale, k, "b h i d, b h j d -> b h i j")  # scaled first: float16 overflows at 65,504
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if bias is not None:
        scores = scores + bias
    allowed = allowed_pairs(layout, mask, window, q, k)
    if allowed is None:
        return scores.softmax(dim=-1)
    # The lowest finite number instead of -inf keeps a row without any key free of NaN; the second fill makes it zero.
    weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~allowed, 0.0)


def drop_weights(weights: Tensor, dropout_p: float, dropout_seed: int | None) -> Tensor:
    """Dropout on attention weights ``[b, h, i, j]``: zero with probability ``dropout_p``, the rest scaled up.

    With a seed, whether a weight is dropped is a function of (seed, b, h, i, j) alone; without one, of torch's
    generator.
    """
    if dropout_seed is None:
        return torch.native_dropout(weights, dropout_p, train=True)[0]  # keeps a mask of bytes, not of floats
    b, h, i, j = (torch.arange(size, device=weights.device) for size in weights.shape)
    draws = uniform(dropout_seed, b[:, None, None, None], h[:, None, None], i[:, None], j)
    return weights * (draws >= dropout_p).to(weights.dtype) / (1.0 - dropout_p)


def reference_attention(
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
    """softmax(Q K^T * scale + bias) V; arguments and result as in ``attention``."""
    packed = layout is not None and layout.is_packed
    if packed:
        q, k, v = (rearrange(x, "t h d -> 1 h t d") for x in (q, k, v))
    weights = attention_weights(q, k, layout=layout, mask=mask, bias=bias, scale=scale, window=window)  # [b, h, i, j]
    if dropout_p > 0.0:
        weights = drop_weights(weights, dropout_p, dropout_seed)
    out = einsum(weights.to(v.dtype), v, "b h i j, b h j d -> b h i d")
    return rearrange(out, "1 h t d -> t h d") if packed else out
