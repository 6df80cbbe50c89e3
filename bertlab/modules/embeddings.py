"""From token ids to the first hidden states."""

from torch import Tensor, nn

from bertlab.modules.position import PositionEncoding


class Embeddings(nn.Module):
    """Token vectors, plus token types and positions, then LayerNorm and dropout (Devlin et al., 2019, section 3.1)."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        type_vocab_size: int = 2,
        dropout: float = 0.0,
        *,
        bias: bool = True,
        layer_norm_eps: float = 1e-12,
    ) -> None:
        """Make the tables.

        Args:
            vocab_size: ``v``.
            hidden_size: ``e``.
            type_vocab_size: number of token types; 0: none.
            dropout: probability of dropping an element in training.
            bias: whether the LayerNorm carries a bias.
            layer_norm_eps: epsilon of the LayerNorm.
        """
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.types = nn.Embedding(type_vocab_size, hidden_size) if type_vocab_size else None
        self.norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, input_ids: Tensor, positions: Tensor, position: PositionEncoding, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Embed.

        Args:
            input_ids: int64 ``[b, i]``.
            positions: int64 ``[i]``.
            position: the position encoding, which may add to the embedding.
            token_type_ids: int64 ``[b, i]``; None: type 0 throughout.

        Returns:
            ``[b, i, e]``.

        Raises:
            ValueError: when types are given but the model has none.
        """
        x = self.tokens(input_ids)
        if self.types is not None:
            x = x + (self.types.weight[0] if token_type_ids is None else self.types(token_type_ids))
        elif token_type_ids is not None:
            raise ValueError("this model has no token types (model.type_vocab_size=0): leave token_type_ids out")
        return self.dropout(self.norm(position.embed(x, positions)))
