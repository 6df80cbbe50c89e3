"""The models: BERT and ModernBERT are the same classes with other options.

Axes: ``b`` batch, ``i`` position, ``e`` hidden width, ``v`` vocabulary, ``m`` predicted positions.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertlab.models.config import BertConfig
from bertlab.modules import (
    Embeddings,
    Encoder,
    EncoderLayer,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    Pooler,
    PositionEncoding,
    PredictionHead,
    RotaryPositions,
)
from bertlab.ops import SequenceLayout
from bertlab.ops.attention import check_backend
from bertlab.ops.loss import IGNORED, masked_lm_loss

log = logging.getLogger(__name__)


@dataclass
class BertOutput:
    """What ``BertModel`` returns.

    Attributes:
        last_hidden_state: ``[b, i, e]``.
        pooler_output: ``[b, e]``; None without a pooler.
        hidden_states: ``[b, i, e]`` of the embeddings and after each layer, the last one after the final norm; on
            request.
        attentions: ``[b, h, i, j]`` per layer, before dropout; on request.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None
    hidden_states: list[Tensor] | None = None
    attentions: list[Tensor] | None = None


@dataclass
class MaskedLMOutput:
    """What ``BertForMaskedLM`` returns.

    Attributes:
        loss: scalar in nats; None without labels.
        logits: ``[b, i, v]`` without labels, ``[m, v]`` with ``masked_positions``, None with labels of every position.
        attentions: see ``BertOutput``.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    attentions: list[Tensor] | None = None


@dataclass
class ClassificationOutput:
    """What ``BertForSequenceClassification`` returns.

    Attributes:
        loss: scalar; None without labels.
        logits: ``[b, num_labels]``.
        attentions: see ``BertOutput``.
    """

    loss: Tensor | None
    logits: Tensor
    attentions: list[Tensor] | None = None


def build_position(config: BertConfig) -> PositionEncoding:
    """The position encoding that ``config.position`` names."""
    if config.position == "learned":
        return LearnedPositions(config.max_position_embeddings, config.hidden_size)
    head_width = config.hidden_size // config.num_attention_heads
    return RotaryPositions(config.max_position_embeddings, head_width, config.rope_theta)


def build_encoder(config: BertConfig) -> Encoder:
    """The stack of layers that ``config`` describes."""
    backend = check_backend(config.attention_backend)
    auto = "sdpa, and reference for attention dropout on the CPU (auto)"
    log.info("attention backend: %s", auto if backend == "auto" else backend)
    layers = []
    for number in range(config.num_hidden_layers):
        attention = MultiHeadAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.attention_probs_dropout_prob,
            hidden_dropout=config.hidden_dropout_prob,
            # The embedding is normalised already, so a pre-norm encoder's first attention has no norm of its own.
            norm="none" if config.norm == "pre" and number == 0 else config.norm,
            bias=config.bias,
            layer_norm_eps=config.layer_norm_eps,
            backend=backend,
        )
        feedforward = FeedForward(
            config.hidden_size,
            config.intermediate_size,
            config.hidden_dropout_prob,
            gated=config.feedforward == "gated",
            norm=config.norm,
            bias=config.bias,
            layer_norm_eps=config.layer_norm_eps,
        )
        layers.append(
            EncoderLayer(attention, feedforward, checkpoint_attention=config.gradient_checkpointing == "attention")
        )
    final_norm = None
    if config.norm == "pre":
        final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.bias)
    return Encoder(layers, final_norm, checkpoint_layers=config.gradient_checkpointing == "full")


def initialize(module: nn.Module, std: float) -> None:
    """BERT's initialisation: matrices from a normal cut off at two standard deviations, biases 0, norms 1."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class BertModel(nn.Module):
    """The encoder: embeddings, layers and, if asked for, the pooler (Devlin et al., 2019, arXiv:1810.04805)."""

    def __init__(self, config: BertConfig, *, add_pooler: bool = True) -> None:
        """Make the encoder with fresh weights, drawn from torch's generator.

        Args:
            config: shape and options; ``vocab_size`` must be set.
            add_pooler: make the pooler if ``config.pooler`` says that the model has one.

        Raises:
            ValueError: when ``config.vocab_size`` is None.
        """
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("BertConfig.vocab_size is not set")
        self.config = config
        self.embeddings = Embeddings(
            config.vocab_size,
            config.hidden_size,
            config.type_vocab_size,
            config.hidden_dropout_prob,
            bias=config.bias,
            layer_norm_eps=config.layer_norm_eps,
        )
        self.position = build_position(config)
        self.encoder = build_encoder(config)
        self.pooler = Pooler(config.hidden_size) if add_pooler and config.pooler else None
        initialize(self, config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> BertOutput:
        """Encode.

        Args:
            input_ids: int64 ``[b, i]``.
            attention_mask: bool or 0/1 integers ``[b, i]``, true at real tokens; None: no padding.
            token_type_ids: int64 ``[b, i]``; None: type 0.
            output_attentions: also return the attention weights.
            output_hidden_states: also return the hidden states of every layer.

        Returns:
            See ``BertOutput``. What stands at padded positions has no meaning.

        Raises:
            ValueError: when the row is longer than ``max_position_embeddings``, the mask does not fit, or token types
                are given to a model without them.
        """
        length = input_ids.shape[1]
        if length > self.config.max_position_embeddings:
            raise ValueError(f"{length} tokens, but max_position_embeddings={self.config.max_position_embeddings}")
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise ValueError(
                f"attention_mask {list(attention_mask.shape)} and input_ids {list(input_ids.shape)} differ in shape"
            )
        layout = SequenceLayout.padded(attention_mask)
        positions = layout.positions(length, input_ids.device)
        x = self.embeddings(input_ids, positions, self.position, token_type_ids)  # [b, i, e]
        states, maps = None, None
        if output_attentions or output_hidden_states:
            states, maps = self.encoder.forward_with_weights(x, layout, self.position)
            hidden = states[-1]
        else:
            hidden = self.encoder(x, layout, self.position)
        return BertOutput(
            last_hidden_state=hidden,
            pooler_output=None if self.pooler is None else self.pooler(hidden),
            hidden_states=states if output_hidden_states else None,
            attentions=maps if output_attentions else None,
        )


class BertForMaskedLM(nn.Module):
    """The encoder with the head that predicts masked tokens; its decoder is the token embedding (tied), plus a bias."""

    def __init__(self, config: BertConfig) -> None:
        """Make the model with fresh weights; arguments and errors as ``BertModel``."""
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooler=False)
        self.head = PredictionHead(config.hidden_size, bias=config.bias, layer_norm_eps=config.layer_norm_eps)
        initialize(self.head, config.initializer_range)
        self.decoder_bias = nn.Parameter(torch.zeros(self.bert.embeddings.tokens.num_embeddings))

    def decode(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: ``[..., e]`` to ``[..., v]``."""
        return F.linear(self.head(hidden), self.bert.embeddings.tokens.weight, self.decoder_bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
        *,
        masked_positions: Tensor | None = None,
        num_masked: Tensor | float | None = None,
    ) -> MaskedLMOutput:
        """Predict masked tokens. With labels, logits are computed at the predicted positions only.

        Args:
            input_ids: int64 ``[b, i]``.
            attention_mask: see ``BertModel``.
            token_type_ids: see ``BertModel``.
            labels: int64 ``[b, i]``, -100 where nothing is predicted; or ``[m]``, one for each of ``masked_positions``.
            output_attentions: also return the attention weights.
            masked_positions: int64 ``[m]``: where to predict, as indices into the flattened ``b * i`` tokens. A
                static ``m`` (padded with any index and the label -100) keeps the shapes of the whole graph static.
            num_masked: what the summed loss is divided by; None: the number of labels that are not -100.

        Returns:
            See ``MaskedLMOutput``.

        Raises:
            ValueError: as ``BertModel``, or for labels whose shape does not fit.
        """
        out = self.bert(input_ids, attention_mask, token_type_ids, output_attentions)
        hidden = out.last_hidden_state  # [b, i, e]
        if labels is None and masked_positions is None:
            return MaskedLMOutput(logits=self.decode(hidden), attentions=out.attentions)
        if masked_positions is None:
            assert labels is not None
            if labels.shape != input_ids.shape:
                raise ValueError(
                    f"labels {list(labels.shape)} do not have the shape of input_ids {list(input_ids.shape)}"
                )
            positions = (labels.flatten() != IGNORED).nonzero().squeeze(1)
            logits = self.decode(hidden.flatten(0, 1)[positions])
            loss = masked_lm_loss(logits, labels.flatten()[positions], num_masked)
            return MaskedLMOutput(loss=loss, attentions=out.attentions)
        logits = self.decode(hidden.flatten(0, 1).index_select(0, masked_positions))  # [m, v]
        if labels is None:
            return MaskedLMOutput(logits=logits, attentions=out.attentions)
        if labels.shape != masked_positions.shape:
            raise ValueError(f"labels {list(labels.shape)} and masked_positions {list(masked_positions.shape)} differ")
        return MaskedLMOutput(loss=masked_lm_loss(logits, labels, num_masked), logits=logits, attentions=out.attentions)


class BertForSequenceClassification(nn.Module):
    """The encoder with a classifier on the pooler's output, or on ModernBERT's head over [CLS] without a pooler."""

    def __init__(self, config: BertConfig) -> None:
        """Make the model with fresh weights; arguments and errors as ``BertModel``."""
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.head = None
        if not config.pooler:
            self.head = PredictionHead(config.hidden_size, bias=config.bias, layer_norm_eps=config.layer_norm_eps)
            initialize(self.head, config.initializer_range)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        initialize(self.classifier, config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
    ) -> ClassificationOutput:
        """Classify sentences or pairs of sentences.

        Args:
            input_ids: int64 ``[b, i]``.
            attention_mask: see ``BertModel``.
            token_type_ids: see ``BertModel``.
            labels: int64 ``[b]`` for classes (cross-entropy), floats ``[b]`` for regression with ``num_labels=1``
                (squared error).
            output_attentions: also return the attention weights.

        Returns:
            See ``ClassificationOutput``.

        Raises:
            ValueError: as ``BertModel``, or for labels whose shape does not fit.
        """
        if labels is not None and labels.shape != input_ids.shape[:1]:
            raise ValueError(f"labels {list(labels.shape)} must be [b] = [{input_ids.shape[0]}]")
        out = self.bert(input_ids, attention_mask, token_type_ids, output_attentions)
        pooled = out.pooler_output if self.head is None else self.head(out.last_hidden_state[:, 0])  # [b, e]
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            if self.config.num_labels == 1:
                loss = F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
            else:
                loss = F.cross_entropy(logits, labels)
        return ClassificationOutput(loss=loss, logits=logits, attentions=out.attentions)
