"""The encoder: attention and feed-forward blocks, one layer after the other."""

from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertlab.modules.attention import MultiHeadAttention
from bertlab.modules.feedforward import FeedForward
from bertlab.modules.position import PositionEncoding
from bertlab.ops import SequenceLayout


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; each carries its own residual and LayerNorm."""

    def __init__(
        self, attention: MultiHeadAttention, feedforward: FeedForward, *, checkpoint_attention: bool = False
    ) -> None:
        """Put the two blocks together.

        Args:
            attention: the self-attention block.
            feedforward: the feed-forward block.
            checkpoint_attention: recompute the attention block in the backward pass instead of storing its activations.
        """
        super().__init__()
        self.attention = attention
        self.feedforward = feedforward
        self.checkpoint_attention = checkpoint_attention

    def forward(self, x: Tensor, layout: SequenceLayout, position: PositionEncoding) -> Tensor:
        """Apply the layer: ``[b, i, e]`` to ``[b, i, e]``."""

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, layout=layout, position=position)

        recompute = self.checkpoint_attention and self.training
        x = cast(Tensor, checkpoint(attend, x, use_reentrant=False)) if recompute else attend(x)
        return cast(Tensor, self.feedforward(x))

    def forward_with_weights(
        self, x: Tensor, layout: SequenceLayout, position: PositionEncoding
    ) -> tuple[Tensor, Tensor]:
        """The same, with the attention weights ``[b, h, i, j]`` beside the output."""
        x, weights = self.attention(x, layout=layout, position=position, output_attentions=True)
        return self.feedforward(x), weights


class Encoder(nn.Module):
    """The stack of layers, with a last LayerNorm when the layers are pre-norm."""

    def __init__(
        self, layers: list[EncoderLayer], final_norm: nn.LayerNorm | None, *, checkpoint_layers: bool = False
    ) -> None:
        """Put the layers together.

        Args:
            layers: in order.
            final_norm: applied to the last hidden states; None for post-norm layers.
            checkpoint_layers: recompute every layer in the backward pass instead of storing its activations.
        """
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_norm = nn.Identity() if final_norm is None else final_norm
        self.checkpoint_layers = checkpoint_layers

    def forward(self, x: Tensor, layout: SequenceLayout, position: PositionEncoding) -> Tensor:
        """Apply all layers: ``[b, i, e]`` to ``[b, i, e]``."""
        for layer in self.layers:
            if self.checkpoint_layers and self.training:
                x = cast(Tensor, checkpoint(layer, x, layout, position, use_reentrant=False))
            else:
                x = layer(x, layout, position)
        return self.final_norm(x)

    def forward_with_weights(
        self, x: Tensor, layout: SequenceLayout, position: PositionEncoding
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Apply all layers and keep what they show; nothing is recomputed in the backward pass, whatever was asked.

        Returns:
            The hidden states ``[b, i, e]``: the input's and those after each layer (the last one after the final norm);
            and each layer's attention weights ``[b, h, i, j]``.
        """
        states, maps = [x], []
        for layer in self.layers:
            x, weights = cast(EncoderLayer, layer).forward_with_weights(x, layout, position)
            states.append(x)
            maps.append(weights)
        states[-1] = self.final_norm(x)
        return states, maps
