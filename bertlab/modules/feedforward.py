"""The position-wise feed-forward block."""

from torch import Tensor, nn
from torch.nn import functional as F


class FeedForward(nn.Module):
    """Two linear layers with GELU between them, inside a residual branch with LayerNorm.

    ``plain``: ``W_2 gelu(W_1 x)`` (Devlin et al., 2019). ``gated``: ``W_2 (gelu(W_1 x) * V x)`` (GeGLU, Shazeer, 2020,
    arXiv:2002.05202), with ``W_1`` and ``V`` as the two halves of one matrix.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        dropout: float = 0.0,
        *,
        gated: bool = False,
        norm: str = "post",
        bias: bool = True,
        layer_norm_eps: float = 1e-12,
    ) -> None:
        """Make the block.

        Args:
            hidden_size: ``e``.
            intermediate_size: inner width, of each half when gated.
            dropout: probability of dropping an output of the block in training.
            gated: whether the inner layer is gated.
            norm: ``post`` (after the residual sum) or ``pre`` (of the input).
            bias: whether the linear layers and the LayerNorm carry biases.
            layer_norm_eps: epsilon of the LayerNorm.

        Raises:
            ValueError: for an unknown ``norm``.
        """
        super().__init__()
        if norm not in ("post", "pre"):
            raise ValueError(f"norm={norm} is not one of post, pre")
        self.gated = gated
        self.pre_norm = norm == "pre"
        self.up = nn.Linear(hidden_size, intermediate_size * (2 if gated else 1), bias=bias)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to every token: ``[..., e]`` to ``[..., e]``."""
        inner = self.up(self.norm(x) if self.pre_norm else x)
        if self.gated:
            activated, gate = inner.chunk(2, dim=-1)
            inner = F.gelu(activated) * gate
        else:
            inner = F.gelu(inner)
        out = x + self.dropout(self.down(inner))
        return out if self.pre_norm else self.norm(out)
