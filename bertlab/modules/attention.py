"""Attention as modules, with the shapes of the article: scaled dot products, then heads around them.

Axes: ``b`` batch, ``i`` query position, ``j`` key position, ``h`` heads, ``d`` head width, ``e`` hidden width.
"""

from typing import Literal, overload

from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from bertlab.modules.position import PositionEncoding
from bertlab.ops import SequenceLayout, attention, attention_weights
from bertlab.ops.attention import check_backend


class ScaledDotProductAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V (Vaswani et al., 2017, arXiv:1706.03762, equation 1), with dropout on the weights."""

    def __init__(self, dropout: float = 0.0, *, scale: float | None = None, backend: str = "auto") -> None:
        """Make the module; it has no parameters.

        Args:
            dropout: probability of dropping an attention weight in training.
            scale: factor of the scores; None: ``1 / sqrt(d)``.
            backend: see ``bertlab.ops.attention``.

        Raises:
            ValueError: for an unknown backend.
        """
        super().__init__()
        self.dropout = dropout
        self.scale = scale
        self.backend = check_backend(backend)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, layout: SequenceLayout | None = None
    ) -> Tensor:
        """Attend.

        Args:
            q: ``[b, h, i, d]``.
            k: ``[b, h, j, d]``.
            v: ``[b, h, j, d]``.
            mask: true where a query may attend to a key: ``[b, j]``, ``[b, i, j]`` (all heads) or ``[b, h, i, j]``.
            layout: padding of the rows, instead of a mask.

        Returns:
            ``[b, h, i, d]``.

        Raises:
            ValueError: as ``bertlab.ops.attention``.
        """
        dropout_p = self.dropout if self.training else 0.0
        return attention(q, k, v, layout=layout, mask=mask, scale=self.scale, dropout_p=dropout_p, backend=self.backend)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"dropout={self.dropout}, backend={self.backend}"


class MultiHeadAttention(nn.Module):
    """Several attentions side by side (Vaswani et al., 2017, section 3.2.2), inside a residual branch with LayerNorm.

    ``norm="post"``: ``norm(q + dropout(concat(heads) W_o))``. ``norm="pre"``: ``q + dropout(concat(heads) W_o)``, where
    the heads see ``norm(q)``. ``norm="none"``: no LayerNorm. The three input projections are one matrix, and
    self-attention is one product.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        dropout: float = 0.0,
        *,
        hidden_dropout: float | None = None,
        norm: str = "post",
        bias: bool = True,
        layer_norm_eps: float = 1e-12,
        backend: str = "auto",
    ) -> None:
        """Make the block.

        Args:
            hidden_size: ``e``.
            num_attention_heads: ``h``; must divide ``e``.
            dropout: probability of dropping an attention weight in training.
            hidden_dropout: probability of dropping an output of the block; None: the same as ``dropout``.
            norm: ``post``, ``pre`` or ``none``.
            bias: whether the projections and the LayerNorm carry biases.
            layer_norm_eps: epsilon of the LayerNorm.
            backend: see ``bertlab.ops.attention``.

        Raises:
            ValueError: when the heads do not divide the width, or for an unknown ``norm`` or backend.
        """
        super().__init__()
        if hidden_size % num_attention_heads:
            raise ValueError(f"num_attention_heads={num_attention_heads} does not divide hidden_size={hidden_size}")
        if norm not in ("post", "pre", "none"):
            raise ValueError(f"norm={norm} is not one of post, pre, none")
        self.num_attention_heads = num_attention_heads
        self.pre_norm = norm == "pre"
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=bias)
        self.attention = ScaledDotProductAttention(dropout, backend=backend)
        self.out = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout if hidden_dropout is None else hidden_dropout)
        self.norm = nn.Identity() if norm == "none" else nn.LayerNorm(hidden_size, eps=layer_norm_eps, bias=bias)

    @overload
    def forward(
        self,
        q: Tensor,
        k: Tensor | None = ...,
        v: Tensor | None = ...,
        mask: Tensor | None = ...,
        *,
        layout: SequenceLayout | None = ...,
        position: PositionEncoding | None = ...,
        output_attentions: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        q: Tensor,
        k: Tensor | None = ...,
        v: Tensor | None = ...,
        mask: Tensor | None = ...,
        *,
        layout: SequenceLayout | None = ...,
        position: PositionEncoding | None = ...,
        output_attentions: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        layout: SequenceLayout | None = None,
        position: PositionEncoding | None = None,
        output_attentions: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from ``q`` to ``k`` and ``v``; self-attention when these are left out or are the same tensor.

        Args:
            q: ``[b, i, e]``; also the residual.
            k: ``[b, j, e]``.
            v: ``[b, j, e]``.
            mask: true where a query may attend to a key: ``[b, j]``, ``[b, i, j]`` or ``[b, h, i, j]``.
            layout: padding of the rows, instead of a mask.
            position: rotates queries and keys.
            output_attentions: also return the weights before dropout, ``[b, h, i, j]``.

        Returns:
            ``[b, i, e]``, or this and the weights.

        Raises:
            ValueError: as ``bertlab.ops.attention``.
        """
        heads_q, heads_k, heads_v = self.project(q, k, v)  # each [b, h, i, d]
        if position is not None:
            positions = (layout or SequenceLayout()).positions(q.shape[1], q.device)
            heads_q, heads_k = position.rotate(heads_q, heads_k, positions)
        mixed = self.attention(heads_q, heads_k, heads_v, mask, layout=layout)  # [b, h, i, d]
        out = q + self.dropout(self.out(rearrange(mixed, "b h i d -> b i (h d)")))
        if not self.pre_norm:
            out = self.norm(out)
        if not output_attentions:
            return out
        return out, attention_weights(heads_q, heads_k, layout=layout, mask=mask, scale=self.attention.scale)

    def project(self, q: Tensor, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, ...]:
        """Queries, keys and values of all heads, each ``[b, h, i, d]``."""
        normed = self.norm(q) if self.pre_norm else q
        if (k is None or k is q) and (v is None or v is q):
            return tuple(rearrange(self.qkv(normed), "b i (n h d) -> n b h i d", n=3, h=self.num_attention_heads))
        k = normed if k is None else k
        v = k if v is None else v
        biases = (None,) * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)
        return tuple(
            rearrange(F.linear(x, weight, bias), "b i (h d) -> b h i d", h=self.num_attention_heads)
            for x, weight, bias in zip((normed, k, v), self.qkv.weight.chunk(3), biases, strict=True)
        )
