"""SequenceLayout: how the sequences of a batch lie in its tensors, and the positions that follow from it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceLayout:
    """Padded rows or packed sequences. Build one with ``padded`` or ``packed``.

    Attributes:
        key_mask: bool ``[b, j]``, true at real tokens; None when no row is padded, or when the layout is packed.
        cu_seqlens: integers ``[n + 1]``: the offsets at which the ``n`` packed sequences begin, and the end of the
            last; None when the layout is padded.
    """

    key_mask: Tensor | None = None
    cu_seqlens: Tensor | None = None

    @classmethod
    def padded(cls, attention_mask: Tensor | None = None) -> "SequenceLayout":
        """Rows of one length ``[b, i, ...]``, the shorter ones padded.

        Args:
            attention_mask: bool or 0/1 integers ``[b, i]``, true at real tokens; None: no padding.

        Raises:
            ValueError: when the mask is not two-dimensional or is of a floating type.
        """
        if attention_mask is None:
            return cls()
        if attention_mask.dim() != 2:
            raise ValueError(f"attention_mask must be [b, i], not of shape {list(attention_mask.shape)}")
        if attention_mask.is_floating_point():
            raise ValueError("attention_mask must hold booleans or 0/1 integers (1: a real token), not floats")
        return cls(key_mask=attention_mask.bool())

    @classmethod
    def packed(cls, cu_seqlens: Tensor) -> "SequenceLayout":
        """Sequences one after the other ``[t, ...]``, without padding.

        Args:
            cu_seqlens: integers ``[n + 1]``, ascending from 0 to ``t``.

        Raises:
            ValueError: when ``cu_seqlens`` is not a vector of at least two integers, or, on the CPU, when they do not
                ascend from 0 (elsewhere looking at them would wait for the device).
        """
        if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.is_floating_point():
            raise ValueError("cu_seqlens must be a vector of n + 1 integers, from 0 to the number of packed tokens")
        if cu_seqlens.device.type == "cpu" and (cu_seqlens[0] != 0 or bool((cu_seqlens.diff() < 0).any())):
            raise ValueError("cu_seqlens must ascend from 0 to the number of packed tokens")
        return cls(cu_seqlens=cu_seqlens)

    @property
    def is_packed(self) -> bool:
        """Whether the tensors are ``[t, ...]`` instead of ``[b, i, ...]``."""
        return self.cu_seqlens is not None

    def sequence_ids(self, num_tokens: int) -> Tensor:
        """The number of the sequence to which each packed token belongs: int64 ``[t]``.

        Raises:
            ValueError: on the CPU, when the sequences do not end at ``num_tokens``.
        """
        assert self.cu_seqlens is not None
        if self.cu_seqlens.device.type == "cpu" and self.cu_seqlens[-1] != num_tokens:
            raise ValueError(f"cu_seqlens ends at {int(self.cu_seqlens[-1])}, but there are {num_tokens} packed tokens")
        tokens = torch.arange(num_tokens, device=self.cu_seqlens.device)
        return torch.bucketize(tokens, self.cu_seqlens[1:].to(tokens.dtype), right=True)

    def positions(self, num_tokens: int, device: torch.device) -> Tensor:
        """Every token's position in its own sequence, from 0: int64 ``[i]`` (for all padded rows) or ``[t]``."""
        tokens = torch.arange(num_tokens, device=device)
        if self.cu_seqlens is None:
            return tokens
        return tokens - self.cu_seqlens.to(tokens.dtype)[self.sequence_ids(num_tokens)]
