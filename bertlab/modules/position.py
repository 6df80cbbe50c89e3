"""Position encodings: the places where they may act, each doing nothing unless an encoding overrides it."""

from collections.abc import Callable

from torch import Tensor, nn

from bertlab.ops.rotary import rotary_tables, rotate


class PositionEncoding(nn.Module):
    """What tells the encoder where a token stands; this base class tells it nothing."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Act on the embeddings.

        Args:
            x: ``[b, i, e]``.
            positions: int64 ``[i]``.

        Returns:
            ``[b, i, e]``.
        """
        return x

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Act on queries and keys.

        Args:
            q: ``[b, h, i, d]``.
            k: ``[b, h, i, d]``.
            positions: int64 ``[i]``.

        Returns:
            Two tensors ``[b, h, i, d]``.
        """
        return q, k


class LearnedPositions(PositionEncoding):
    """A trained vector for every absolute position, added to the embedding (Devlin et al., 2019)."""

    def __init__(self, max_position_embeddings: int, hidden_size: int) -> None:
        """Make the table ``[p, e]``."""
        super().__init__()
        self.table = nn.Embedding(max_position_embeddings, hidden_size)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add each position's vector to ``x``; see the base class."""
        return x + self.table(positions)


class RotaryPositions(PositionEncoding):
    """Queries and keys turned by an angle that grows with the position (Su et al., 2021, arXiv:2104.09864)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, max_position_embeddings: int, head_width: int, theta: float) -> None:
        """Make the tables of cosines and sines, which are not trained and not saved.

        Args:
            max_position_embeddings: number of positions.
            head_width: ``d``, even.
            theta: base of the frequencies.
        """
        super().__init__()
        cos, sin = rotary_tables(max_position_embeddings, head_width, theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RotaryPositions":
        """Follow the model to its device, but stay in float32: half precision cannot tell large angles apart."""
        tables = self.cos, self.sin
        super()._apply(fn, recurse)
        self.cos, self.sin = (table.to(self.cos.device) for table in tables)
        return self

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate; see the base class."""
        cos, sin = self.cos[positions], self.sin[positions]  # [i, d / 2]
        return rotate(q, cos, sin), rotate(k, cos, sin)
