"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864)."""

from typing import Any

import torch
from torch import Tensor


def rotary_tables(num_positions: int, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of ``position * theta^(-2 n / d)`` for the ``d / 2`` pairs of a head.

    Args:
        num_positions: number of positions ``p``, from 0.
        head_width: ``d``, even.
        theta: base of the frequencies.

    Returns:
        Two float32 tensors ``[p, d / 2]``.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


class _Rotate(torch.autograd.Function):
    """Rotation, written out because its backward is the rotation by the opposite angle: nothing has to be saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grads[0], cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    if torch.compiler.is_compiling():  # the compiler fuses this itself, and does not take writes into a slice
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.mul(first, cos, out=out[..., : cos.shape[-1]]).addcmul_(second, sin, value=-1.0)
    torch.mul(second, cos, out=out[..., cos.shape[-1] :]).addcmul_(first, sin)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair ``(x[n], x[n + d / 2])`` of a head by its position's angle.

    Args:
        x: queries or keys ``[..., d]``.
        cos: ``[..., d / 2]``, broadcastable to the halves of ``x``.
        sin: the same.

    Returns:
        The shape and type of ``x``.
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    return _Rotate.apply(x.to(precise), cos.to(precise), sin.to(precise)).to(x.dtype)
