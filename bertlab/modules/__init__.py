"""The blocks of the encoder, as nn.Modules."""

from bertlab.modules.attention import MultiHeadAttention, ScaledDotProductAttention
from bertlab.modules.embeddings import Embeddings
from bertlab.modules.encoder import Encoder, EncoderLayer
from bertlab.modules.feedforward import FeedForward
from bertlab.modules.heads import Pooler, PredictionHead
from bertlab.modules.position import LearnedPositions, PositionEncoding, RotaryPositions

__all__ = [
    "Embeddings",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LearnedPositions",
    "MultiHeadAttention",
    "Pooler",
    "PositionEncoding",
    "PredictionHead",
    "RotaryPositions",
    "ScaledDotProductAttention",
]
