"""What reads the encoder's output."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Pooler(nn.Module):
    """BERT's sentence vector: ``tanh(W h_[CLS] + b)``."""

    def __init__(self, hidden_size: int) -> None:
        """Make the matrix ``[e, e]`` and its bias."""
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Pool the first token: ``[b, i, e]`` to ``[b, e]``."""
        return torch.tanh(self.dense(hidden[:, 0]))


class PredictionHead(nn.Module):
    """The transform before the decoder: linear, GELU, LayerNorm (BERT's MLM head and ModernBERT's head alike)."""

    def __init__(self, hidden_size: int, *, bias: bool = True, layer_norm_eps: float = 1e-12) -> None:
        """Make the block.

        Args:
            hidden_size: ``e``.
            bias: whether the linear layer and the LayerNorm carry biases.
            layer_norm_eps: epsilon of the LayerNorm.
        """
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform every vector: ``[..., e]`` to ``[..., e]``."""
        return self.norm(F.gelu(self.dense(hidden)))
