"""Who may attend to whom: every kind of mask as one boolean tensor."""

import torch
from torch import Tensor

from bertlab.ops.layout import SequenceLayout


def expand_mask(mask: Tensor) -> Tensor:
    """Give a mask the four axes of the scores ``[b, h, i, j]``, with size 1 where it says nothing.

    Args:
        mask: bool or 0/1 integers, true where a query may attend to a key: ``[b, j]`` (keys), ``[b, i, j]`` (the same
            for all heads), or ``[b, h, i, j]``.

    Returns:
        bool ``[b, 1, 1, j]``, ``[b, 1, i, j]`` or ``[b, h, i, j]``.

    Raises:
        ValueError: for a floating type or another number of axes.
    """
    if mask.is_floating_point() or mask.is_complex():
        raise ValueError(
            "a mask holds booleans or 0/1 integers (true: may be attended to); additive scores go in bias="
        )
    mask = mask.bool()
    if mask.dim() == 2:
        return mask[:, None, None, :]
    if mask.dim() == 3:
        return mask[:, None, :, :]
    if mask.dim() == 4:
        return mask
    raise ValueError(f"a mask is [b, j], [b, i, j] or [b, h, i, j], not {list(mask.shape)}")


def allowed_pairs(
    layout: SequenceLayout | None, mask: Tensor | None, window: int | None, q: Tensor, k: Tensor
) -> Tensor | None:
    """Combine padding, packing, mask and window.

    Args:
        layout: padded or packed sequences; packed ones attend only within themselves.
        mask: see ``expand_mask``.
        window: total width of a sliding window: query ``i`` sees the keys with ``|i - j| <= window // 2``.
        q: ``[b, h, i, d]``; ``b`` is 1 for a packed layout.
        k: ``[b, h, j, d]``.

    Returns:
        bool, broadcastable to ``[b, h, i, j]``, true where query ``i`` may attend to key ``j``; None when every pair is
        allowed.

    Raises:
        ValueError: when the mask or the padding has other sizes than ``q`` and ``k``.
    """
    pairs = [*q.shape[:3], k.shape[2]]
    parts = []
    if mask is not None:
        parts.append(expand_mask(mask))
    if layout is not None and layout.key_mask is not None:
        parts.append(layout.key_mask[:, None, None, :])
    for given in parts:
        # Keys have to be there: a mask of one key would be silently taken for that of all.
        fits = given.shape[3] == pairs[3] and all(n in (1, whole) for n, whole in zip(given.shape, pairs, strict=True))
        if not fits:
            raise ValueError(f"a mask that expands to {list(given.shape)} does not fit [b, h, i, j] = {pairs}")
    if layout is not None and layout.is_packed:
        ids = layout.sequence_ids(pairs[2])  # [t]
        parts.append((ids[:, None] == ids[None, :])[None, None])
    if window is not None:
        rows, cols = torch.arange(pairs[2], device=q.device), torch.arange(pairs[3], device=q.device)
        parts.append(((rows[:, None] - cols[None, :]).abs() <= window // 2)[None, None])
    if not parts:
        return None
    allowed = parts[0]
    for part in parts[1:]:
        allowed = allowed & part
    return allowed
