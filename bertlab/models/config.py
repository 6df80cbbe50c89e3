"""BertConfig: every option of the model, flat. Imports no torch, so that ``--help`` stays quick."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from bertlab.errors import UserError, check

CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("post", "pre"),
    "position": ("learned", "rope"),
    "feedforward": ("plain", "gated"),
    "gradient_checkpointing": ("none", "attention", "full"),
    "attention_backend": ("auto", "reference", "sdpa"),
}


@dataclass
class BertConfig:
    """The shape and the options of a BERT encoder. The defaults are BERT-base (Devlin et al., 2019, arXiv:1810.04805).

    Attributes:
        vocab_size: number of token embeddings; in a run ``null`` means the tokenizer's real size.
        hidden_size: width ``e`` of the residual stream.
        num_hidden_layers: encoder layers.
        num_attention_heads: heads ``h``; must divide ``hidden_size``.
        intermediate_size: inner width of the feed-forward block (of each of its two halves when gated).
        hidden_dropout_prob: dropout on the embeddings and on the output of every sublayer, a probability.
        attention_probs_dropout_prob: dropout on the attention weights, a probability.
        max_position_embeddings: longest sequence, in tokens.
        type_vocab_size: number of token types; 0 for no token-type embedding.
        layer_norm_eps: epsilon of every LayerNorm.
        norm: ``post`` (LayerNorm after each residual sum, BERT) or ``pre`` (before each sublayer and once at the end;
            the embedding is normalised, so the first attention has no norm of its own; ModernBERT).
        position: ``learned`` absolute embeddings or ``rope`` (rotary, Su et al., 2021, arXiv:2104.09864).
        rope_theta: base of the rotary frequencies.
        feedforward: ``plain`` (two matrices with GELU) or ``gated`` (GeGLU, Shazeer, 2020, arXiv:2002.05202).
        bias: whether linear layers and norms carry biases; the MLM decoder and the classifier always do.
        pooler: whether sentence heads read the tanh pooler of BERT; without it they use ModernBERT's prediction head.
        initializer_range: standard deviation of the truncated normal that initialises every matrix.
        pad_token_id: id of the padding token, carried into exported models.
        gradient_checkpointing: what the backward pass recomputes: ``none``, the ``attention`` block of every layer, or
            the ``full`` layer.
        attention_backend: ``auto``, ``reference`` or ``sdpa``; see ``bertlab.ops.attention``.
        num_labels: classes of ``BertForSequenceClassification`` (1 for regression).
    """

    vocab_size: int | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    norm: str = "post"
    position: str = "learned"
    rope_theta: float = 10_000.0
    feedforward: str = "plain"
    bias: bool = True
    pooler: bool = True
    initializer_range: float = 0.02
    pad_token_id: int = 0
    gradient_checkpointing: str = "none"
    attention_backend: str = "auto"
    num_labels: int = 2

    def __post_init__(self) -> None:
        """Check every invariant that concerns the model alone.

        Raises:
            UserError: with all problems in one message, each naming its override.
        """
        problems = []
        for name, options in CHOICES.items():
            if getattr(self, name) not in options:
                problems.append(f"model.{name}={getattr(self, name)} is not one of {', '.join(options)}")
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "num_labels",
        ):
            if getattr(self, name) < 1:
                problems.append(f"model.{name}={getattr(self, name)} must be at least 1")
        if self.vocab_size is not None and self.vocab_size < 1:
            problems.append(f"model.vocab_size={self.vocab_size} must be at least 1 (or null: the tokenizer's size)")
        if self.type_vocab_size < 0:
            problems.append(f"model.type_vocab_size={self.type_vocab_size} must not be negative")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                problems.append(f"model.{name}={getattr(self, name)} must be at least 0 and below 1")
        for name in ("layer_norm_eps", "rope_theta", "initializer_range"):
            if not getattr(self, name) > 0.0:
                problems.append(f"model.{name}={getattr(self, name)} must be above 0")
        if self.num_attention_heads >= 1 and self.hidden_size >= 1:
            if self.hidden_size % self.num_attention_heads:
                problems.append(
                    f"model.num_attention_heads={self.num_attention_heads} does not divide "
                    f"model.hidden_size={self.hidden_size}"
                )
            elif self.position == "rope" and (self.hidden_size // self.num_attention_heads) % 2:
                problems.append(
                    f"model.position=rope needs an even head width, but model.hidden_size={self.hidden_size} / "
                    f"model.num_attention_heads={self.num_attention_heads} = "
                    f"{self.hidden_size // self.num_attention_heads}"
                )
        if self.vocab_size is not None and not 0 <= self.pad_token_id < max(self.vocab_size, 1):
            problems.append(
                f"model.pad_token_id={self.pad_token_id} is outside the vocabulary (model.vocab_size={self.vocab_size})"
            )
        check(problems)

    def to_dict(self) -> dict[str, Any]:
        """All fields as a plain dict, in the order of their definition."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BertConfig":
        """Build a config from ``to_dict``'s result.

        Raises:
            UserError: when ``values`` holds a name that is not a field.
        """
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise UserError(f"unknown fields of BertConfig: {', '.join(unknown)}")
        return cls(**values)
