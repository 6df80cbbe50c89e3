"""BertConfig: what goes together, what does not, and in which words that is said."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertlab.errors import UserError
from bertlab.models.config import CHOICES, BertConfig

MODERN = {
    "norm": "pre",
    "position": "rope",
    "feedforward": "gated",
    "bias": False,
    "pooler": False,
    "type_vocab_size": 0,
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_attention_heads": 7}, "model.num_attention_heads=7 does not divide model.hidden_size=768"),
        ({"hidden_size": 0}, "model.hidden_size=0 must be at least 1"),
        ({"num_hidden_layers": -1}, "model.num_hidden_layers=-1 must be at least 1"),
        ({"num_attention_heads": 0}, "model.num_attention_heads=0 must be at least 1"),
        ({"intermediate_size": 0}, "model.intermediate_size=0 must be at least 1"),
        ({"max_position_embeddings": 0}, "model.max_position_embeddings=0 must be at least 1"),
        ({"num_labels": 0}, "model.num_labels=0 must be at least 1"),
        ({"vocab_size": 0}, "model.vocab_size=0 must be at least 1"),
        ({"type_vocab_size": -1}, "model.type_vocab_size=-1 must not be negative"),
        ({"hidden_dropout_prob": 1.0}, "model.hidden_dropout_prob=1.0 must be at least 0 and below 1"),
        ({"attention_probs_dropout_prob": -0.1}, "model.attention_probs_dropout_prob=-0.1 must be"),
        ({"layer_norm_eps": 0.0}, "model.layer_norm_eps=0.0 must be above 0"),
        ({"initializer_range": float("nan")}, "model.initializer_range=nan must be above 0"),
        ({"rope_theta": -1.0}, "model.rope_theta=-1.0 must be above 0"),
        ({"norm": "rms"}, "model.norm=rms is not one of post, pre"),
        ({"position": "alibi"}, "model.position=alibi is not one of learned, rope"),
        ({"feedforward": "swiglu"}, "model.feedforward=swiglu is not one of plain, gated"),
        ({"gradient_checkpointing": "some"}, "model.gradient_checkpointing=some is not one of none, attention, full"),
        ({"attention_backend": "flash"}, "model.attention_backend=flash is not one of auto, reference, sdpa"),
        ({"vocab_size": 100, "pad_token_id": 100}, "model.pad_token_id=100 is outside the vocabulary"),
        (
            {"position": "rope", "hidden_size": 9, "num_attention_heads": 3},
            "model.position=rope needs an even head width, but model.hidden_size=9 / model.num_attention_heads=3 = 3",
        ),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        BertConfig(**fields)
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_all_problems_come_at_once() -> None:
    with pytest.raises(UserError) as error:
        BertConfig(num_attention_heads=7, norm="rms", hidden_dropout_prob=2.0)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("fields", [{}, MODERN, {"position": "rope"}, {"type_vocab_size": 0}, {"vocab_size": 1}])
def test_what_goes_together(fields: dict[str, Any]) -> None:
    config = BertConfig(**fields)
    assert BertConfig.from_dict(config.to_dict()) == config


@given(
    st.fixed_dictionaries({name: st.sampled_from(options) for name, options in CHOICES.items()}),
    st.integers(1, 64),
    st.integers(1, 8),
)
def test_every_choice_goes_with_every_other(choices: dict[str, str], hidden: int, heads: int) -> None:
    """Except for what the arithmetic of heads forbids."""
    possible = hidden % heads == 0 and not (choices["position"] == "rope" and hidden // heads % 2)
    try:
        BertConfig(hidden_size=hidden, num_attention_heads=heads, **choices)
    except UserError:
        assert not possible
    else:
        assert possible


def test_unknown_fields_are_named() -> None:
    with pytest.raises(UserError, match="unknown fields of BertConfig: heads, layers"):
        BertConfig.from_dict({"heads": 3, "layers": 2, "norm": "pre"})


def test_the_config_needs_no_torch() -> None:
    script = "import sys, bertlab.models.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).resolve().parents[2], check=True)
