"""config.json: BertConfig in the words of transformers' BERT and ModernBERT, and back."""

import dataclasses
import logging
from typing import Any

from bertlab.errors import UserError, check
from bertlab.hub.layouts import BERT, BERTLAB, LAYOUTS, MODERNBERT, Layout
from bertlab.models.config import BertConfig

log = logging.getLogger(__name__)

_FULL, _SLIDING = "full_attention", "sliding_attention"

# Our field, and the keys of config.json that carry it: all are written, the first is read. In training ModernBERT drops
# out a little elsewhere than we do (inside the feed-forward block, and after the attention at the rate of its weights).
_BERT_KEYS = {
    name: [name]
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "max_position_embeddings",
        "type_vocab_size",
        "layer_norm_eps",
        "initializer_range",
        "pad_token_id",
    )
}
_MODERNBERT_KEYS = {
    "vocab_size": ["vocab_size"],
    "hidden_size": ["hidden_size"],
    "num_hidden_layers": ["num_hidden_layers"],
    "num_attention_heads": ["num_attention_heads"],
    "intermediate_size": ["intermediate_size"],
    "hidden_dropout_prob": ["mlp_dropout", "embedding_dropout", "classifier_dropout"],
    "attention_probs_dropout_prob": ["attention_dropout"],
    "max_position_embeddings": ["max_position_embeddings"],
    "layer_norm_eps": ["norm_eps"],
    "bias": ["norm_bias", "attention_bias", "mlp_bias", "classifier_bias"],
    "initializer_range": ["initializer_range"],
    "pad_token_id": ["pad_token_id"],
}

# What our models are, in keys that have no field of BertConfig. Any other value is refused; a key may be absent.
_BERT_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_MODERNBERT_FIXED = {
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "classifier_pooling": "cls",
    "decoder_bias": True,
    "tie_word_embeddings": True,
}


_KINDS = {int: "an integer", float: "a number", bool: "true or false"}


def write_config(
    config: BertConfig, layout: Layout, class_name: str, dtype: str, num_labels: int | None
) -> dict[str, Any]:
    """The content of config.json.

    Args:
        config: of the model.
        layout: which words to use.
        class_name: our class, such as ``BertForMaskedLM``.
        dtype: of the tensors, as transformers writes it, such as ``float32``.
        num_labels: classes of a classifier; None for a model without one.
    """
    values: dict[str, Any] = {
        "architectures": [layout.class_prefix + class_name],
        "model_type": layout.model_type,
        "dtype": dtype,
    }
    if layout is BERTLAB:
        return values | config.to_dict()
    if num_labels is not None:
        names = [f"LABEL_{number}" for number in range(num_labels)]
        values["id2label"] = {str(number): name for number, name in enumerate(names)}
        values["label2id"] = {name: number for number, name in enumerate(names)}
    keys = _BERT_KEYS if layout is BERT else _MODERNBERT_KEYS
    values |= {key: getattr(config, field) for field, names in keys.items() for key in names}
    if layout is BERT:
        # The position encoding is a thing of older versions: the current ones know no other.
        return values | {key: value for key, value in _BERT_FIXED.items() if key != "position_embedding_type"}
    rope = {"rope_type": "default", "rope_theta": float(config.rope_theta)}
    return values | {
        **_MODERNBERT_FIXED,
        "layer_types": [_FULL] * config.num_hidden_layers,
        "rope_parameters": {_FULL: rope, _SLIDING: dict(rope)},
        # transformers would fill these in with ids of ModernBERT's own vocabulary.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


def read_config(values: dict[str, Any], file: str) -> tuple[Layout, BertConfig]:
    """Understand config.json.

    Args:
        values: its content.
        file: its name, for messages.

    Raises:
        UserError: for a model type or a value that our models do not have.
    """
    layout = LAYOUTS.get(str(values.get("model_type")))
    if layout is None:
        raise UserError(
            f"{file}: model_type={values.get('model_type')} cannot be opened; these can: {', '.join(LAYOUTS)}"
        )
    read = {"bert": _read_bert, "modernbert": _read_modernbert, "bertlab": _read_bertlab}[layout.model_type]
    try:
        return layout, read(values)
    except (UserError, TypeError, ValueError, AttributeError) as error:  # a value of a kind that we did not foresee
        raise UserError("\n".join(f"{file}: {line}" for line in str(error).splitlines())) from None


def _read_bertlab(values: dict[str, Any]) -> BertConfig:
    outer = ("architectures", "model_type", "dtype")
    return BertConfig.from_dict({key: value for key, value in values.items() if key not in outer})


def _read_bert(values: dict[str, Any]) -> BertConfig:
    fields = _read_fields(values, _BERT_KEYS, _BERT_FIXED, [])
    _note_dropout(values, "classifier_dropout", fields)
    return BertConfig.from_dict({**BERT.requires, **fields})


def _read_modernbert(values: dict[str, Any]) -> BertConfig:
    problems = []
    # Older files say how often a layer with global attention comes instead of naming each layer's kind.
    every = values.get("global_attn_every_n_layers", 3)
    layers = values.get("layer_types")
    if layers is None:
        if not isinstance(every, int) or every < 1:
            raise UserError(f"global_attn_every_n_layers={every!r} is not an integer of at least 1")
        layers = [_SLIDING if number % every else _FULL for number in range(values.get("num_hidden_layers", 0))]
    if set(layers) - {_FULL}:
        problems.append(f"layer_types holds {_SLIDING}, but only {_FULL} is supported (a window is not built yet)")
    biases = {key: values[key] for key in _MODERNBERT_KEYS["bias"] if key in values}
    if len(set(biases.values())) > 1:
        problems.append(f"these must be all true or all false: {', '.join(f'{k}={v}' for k, v in biases.items())}")
    rope = values.get("rope_parameters") or {}
    rope = rope.get(_FULL) or {} if isinstance(rope, dict) else {"rope_type": rope}
    if rope.get("rope_type", "default") != "default":
        problems.append(f"rope_parameters: rope_type={rope['rope_type']} is not supported, only default is")
    fields = _read_fields(values, _MODERNBERT_KEYS, _MODERNBERT_FIXED, problems)
    for key in ("embedding_dropout", "classifier_dropout"):
        _note_dropout(values, key, fields)
    theta = rope.get("rope_theta", values.get("global_rope_theta", 160_000.0))
    if not isinstance(theta, (int, float)):
        raise UserError(f"rope_theta={theta!r} is not a number")
    # What ModernBERT means where a file is silent differs from BertConfig's defaults, which are BERT's.
    silent = {"bias": False, "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig.from_dict({**MODERNBERT.requires, **silent, **fields, "rope_theta": float(theta)})


def _read_fields(
    values: dict[str, Any], keys: dict[str, list[str]], fixed: dict[str, Any], problems: list[str]
) -> dict[str, Any]:
    """The fields that ``keys`` names and the file has, with what is missing or unsupported added to ``problems``."""
    for key, wanted in fixed.items():
        if values.get(key, wanted) != wanted:
            problems.append(f"{key}={values[key]} is not supported, only {wanted} is")
    required = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    kinds = {field.name: type(field.default) for field in dataclasses.fields(BertConfig) if field.default is not None}
    for field, names in keys.items():
        value, kind = values.get(names[0]), kinds.get(field, int)
        taken = (int, float) if kind is float else (kind,)
        if field in required and type(value) is not int:
            problems.append(f"{names[0]} is missing or not an integer")
        elif value is not None and type(value) not in taken:
            problems.append(f"{names[0]}={value!r} is not {_KINDS[kind]}")
    check(problems)
    # A null is a setting that the model does without, such as the padding token's id.
    fields = {field: values[names[0]] for field, names in keys.items() if values.get(names[0]) is not None}
    labels = values.get("id2label")
    return fields | {"num_labels": len(labels) if labels else values.get("num_labels", 2)}


def _note_dropout(values: dict[str, Any], key: str, fields: dict[str, Any]) -> None:
    rate = fields.get("hidden_dropout_prob")
    if rate is not None and values.get(key) not in (None, rate):
        log.warning("%s=%s is not a setting of its own here: training would use %s for it", key, values[key], rate)
