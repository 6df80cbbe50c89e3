"""The same weights give the same numbers as in transformers, for both of its architectures, in both directions."""

import logging
import warnings
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    ModernBertConfig,
    PreTrainedModel,
)
from transformers import BertConfig as TheirBertConfig

from bertlab import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    load_pretrained,
    save_pretrained,
)
from bertlab.modules import ScaledDotProductAttention
from bertlab.ops.attention import BACKENDS

MODERN = {
    "norm": "pre",
    "position": "rope",
    "feedforward": "gated",
    "bias": False,
    "pooler": False,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
}
FAMILIES = {"bert": {}, "modern": MODERN, "modern_with_biases": {**MODERN, "bias": True, "rope_theta": 500.0}}
AUTO = {
    BertModel: AutoModel,
    BertForMaskedLM: AutoModelForMaskedLM,
    BertForSequenceClassification: AutoModelForSequenceClassification,
}
# (rows, tokens), heads, layers, hidden, inner width, labels
SHAPES = [
    ((3, 7), 3, 1, 12, 20, 2),
    ((2, 1), 1, 2, 8, 5, 3),
    ((2, 33), 4, 3, 16, 24, 1),
    ((1, 18), 2, 2, 20, 7, 5),
]
VOCABULARY = 41


def our_config(family: str, shape: tuple) -> BertConfig:
    _, heads, layers, hidden, inner, labels = shape
    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=40,
        num_labels=labels,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **FAMILIES[family],
    )


def their_model(cls: type, family: str, shape: tuple) -> PreTrainedModel:
    _, heads, layers, hidden, inner, labels = shape
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": 40,
        "num_labels": labels,
        "pad_token_id": 0,
        "attn_implementation": "eager",
    }
    if family == "bert":
        return AUTO[cls].from_config(
            TheirBertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        )
    bias = family == "modern_with_biases"
    theta = 500.0 if bias else 10_000.0
    return AUTO[cls].from_config(
        ModernBertConfig(
            **sizes,
            **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), bias),
            layer_types=["full_attention"] * layers,
            rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": theta}},
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        )
    )


def randomize(model: nn.Module) -> None:
    """Weights several times larger than at initialisation, norms that do not multiply by one, biases that add."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.2)
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.add_(1.0)


def make_pair(direction: str, cls: type, family: str, shape: tuple, folder: Path) -> tuple[nn.Module, PreTrainedModel]:
    """The same random model twice, one opened from the folder that the other one was saved to."""
    if direction == "export":
        ours = cls(our_config(family, shape))
        randomize(ours)
        save_pretrained(ours, folder)
        theirs = AUTO[cls].from_pretrained(folder, attn_implementation="eager")
    else:
        theirs = their_model(cls, family, shape)
        randomize(theirs)
        theirs.save_pretrained(folder)
        ours = load_pretrained(folder, cls)
    return ours.eval(), theirs.eval()


def make_inputs(family: str, shape: tuple, padding: str) -> dict[str, Tensor]:
    (rows, length), *_ = shape
    # Id 0 is the padding token, whose vector transformers does not train, so it occurs at padded positions only.
    inputs = {"input_ids": torch.randint(1, VOCABULARY, (rows, length))}
    if family == "bert":
        inputs["token_type_ids"] = torch.randint(0, 2, (rows, length))
    if padding != "none":
        if padding == "right":
            mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1))
        else:
            mask = torch.rand(rows, length) < 0.6
            mask[torch.arange(rows), torch.randint(0, length, (rows,))] = True
        inputs["attention_mask"] = mask.long()
        inputs["input_ids"] *= mask
    return inputs


def real_tokens(inputs: dict[str, Tensor]) -> Tensor:
    return inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0.0)


def compare_outputs(cls: type, ours: nn.Module, theirs: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    real = real_tokens(inputs)
    with torch.no_grad():
        if cls is BertModel:
            out = ours(**inputs, output_attentions=True, output_hidden_states=True)
            want = theirs(**inputs, output_attentions=True, output_hidden_states=True)
            assert len(out.hidden_states) == len(want.hidden_states) == ours.config.num_hidden_layers + 1
            for state, wanted in zip(out.hidden_states, want.hidden_states, strict=True):
                assert_close(state[real], wanted[real])
            assert_close(ours(**inputs).last_hidden_state[real], want.last_hidden_state[real])
            if ours.config.pooler and real[:, 0].all():
                assert_close(out.pooler_output, want.pooler_output)
        else:
            out = ours(**inputs, output_attentions=True)
            want = theirs(**inputs, output_attentions=True)
            if cls is BertForMaskedLM:
                assert_close(out.logits[real], want.logits[real])
            elif real[:, 0].all():
                assert_close(out.logits, want.logits)
        assert len(out.attentions) == len(want.attentions) == ours.config.num_hidden_layers
        for weights, wanted in zip(out.attentions, want.attentions, strict=True):
            assert_close(weights.transpose(1, 2)[real], wanted.transpose(1, 2)[real])  # [real queries, h, j]


def losses(
    cls: type, ours: nn.Module, theirs: PreTrainedModel, inputs: dict[str, Tensor]
) -> tuple[Tensor, Tensor] | None:
    real = real_tokens(inputs)
    if cls is BertModel:
        out, want = ours(**inputs), theirs(**inputs)
        direction = torch.randn(int(real.sum()), ours.config.hidden_size)
        sums = [(o.last_hidden_state[real] * direction).mean() for o in (out, want)]
        if ours.config.pooler and real[:, 0].all():
            direction = torch.randn_like(out.pooler_output)
            sums = [s + (o.pooler_output * direction).mean() for s, o in zip(sums, (out, want), strict=True)]
        return sums[0], sums[1]
    if cls is BertForMaskedLM:
        labels = torch.randint(0, VOCABULARY, real.shape)
        labels[~real | (torch.rand(real.shape) < 0.5)] = -100
        if (labels == -100).all():
            return None
    elif not real[:, 0].all():
        return None
    elif ours.config.num_labels == 1:
        labels = torch.randn(len(real))
    else:
        labels = torch.randint(0, ours.config.num_labels, (len(real),))
    return ours(**inputs, labels=labels).loss, theirs(**inputs, labels=labels).loss


def compare_gradients(
    cls: type, ours: nn.Module, theirs: PreTrainedModel, inputs: dict[str, Tensor], folder: Path
) -> None:
    pair = losses(cls, ours, theirs, inputs)
    if pair is None:
        return
    assert_close(pair[0], pair[1])
    ours.zero_grad()
    theirs.zero_grad()
    for loss in pair:
        loss.backward()
    # Gradients travel through our export as if they were weights, which gives them transformers' names.
    carrier = deepcopy(ours)
    with torch.no_grad():
        for parameter, source in zip(carrier.parameters(), ours.parameters(), strict=True):
            parameter.copy_(torch.zeros_like(source) if source.grad is None else source.grad)
    save_pretrained(carrier, folder / "gradients")
    got = load_file(folder / "gradients" / "model.safetensors")
    wanted = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in theirs.named_parameters()}
    assert got.keys() == wanted.keys()
    whole = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    for name, gradient in wanted.items():
        # Some gradients are zero by construction (a softmax does not see the bias of its keys), but for the rounding.
        if gradient.norm() < 1e-6 * whole:
            assert got[name].norm() < 1e-6 * whole, name
        else:
            assert (got[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


@pytest.mark.parametrize("direction", ["export", "import"])
@pytest.mark.parametrize("shape", SHAPES, ids=[f"{s[0][1]}tokens-{s[1]}heads-{s[2]}layers" for s in SHAPES])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cls", AUTO, ids=lambda cls: cls.__name__)
def test_same_outputs_and_gradients(cls: type, family: str, shape: tuple, direction: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours, theirs = make_pair(direction, cls, family, shape, tmp_path)
    for padding in ("none", "right", "anywhere"):
        inputs = make_inputs(family, shape, padding)
        for backend in BACKENDS:
            for module in ours.modules():
                if isinstance(module, ScaledDotProductAttention):
                    module.backend = backend
            compare_outputs(cls, ours, theirs, inputs)
            compare_gradients(cls, ours, theirs, inputs, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cls", AUTO, ids=lambda cls: cls.__name__)
def test_transformers_opens_our_folder_without_a_word(cls: type, family: str, tmp_path: Path) -> None:
    model = cls(our_config(family, SHAPES[2]))
    save_pretrained(model, tmp_path)
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            theirs, info = AUTO[cls].from_pretrained(tmp_path, output_loading_info=True)
    finally:
        logger.removeHandler(handler)
    assert not [record.getMessage() for record in records]
    assert not any(info.values()), info
    assert type(theirs).__name__ == ("" if family == "bert" else "Modern") + cls.__name__
    assert theirs.dtype == torch.float32
    # What we left out of config.json has the value that transformers writes when it saves the same model.
    theirs.save_pretrained(tmp_path / "again")
    back = load_pretrained(tmp_path / "again", cls)
    expected = model.config.to_dict()
    if cls is not BertForSequenceClassification:  # the number of classes is written for classifiers alone
        expected["num_labels"] = back.config.num_labels
    assert back.config.to_dict() == expected
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), back.parameters(), strict=True))
    ours_file, theirs_file = (load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "again"))
    assert ours_file.keys() == theirs_file.keys()


def test_checkpoints_with_more_or_fewer_heads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pretraining checkpoint (with a pooler and sentence prediction) serves all three classes."""
    from transformers import BertForPreTraining

    torch.manual_seed(0)
    caplog.set_level(logging.INFO, logger="bertlab.hub")
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    theirs = BertForPreTraining(TheirBertConfig(**sizes, intermediate_size=12)).eval()
    randomize(theirs)
    theirs.save_pretrained(tmp_path)
    input_ids = torch.randint(1, 30, (2, 6))
    want = theirs(input_ids)

    assert_close(load_pretrained(tmp_path)(input_ids).logits, want.prediction_logits)
    assert "bert.pooler.dense.weight" in caplog.text
    assert "cls.seq_relationship.weight" in caplog.text
    assert_close(load_pretrained(tmp_path, BertModel)(input_ids).pooler_output, theirs.bert(input_ids).pooler_output)

    caplog.clear()
    classifier = load_pretrained(tmp_path, BertForSequenceClassification)
    fresh = next(r.getMessage() for r in caplog.records if "fresh" in r.getMessage())
    assert "classifier.weight" in fresh
    assert "pooler" not in fresh
    assert torch.equal(classifier.bert.pooler.dense.weight, theirs.bert.pooler.dense.weight)


def test_a_checkpoint_in_several_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = their_model(BertForMaskedLM, "modern", SHAPES[2]).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    assert not (tmp_path / "model.safetensors").exists()
    inputs = make_inputs("modern", SHAPES[2], "none")
    assert_close(load_pretrained(tmp_path)(**inputs).logits, theirs(**inputs).logits)


def test_a_transformers_tokenizer_is_saved_beside_the_model(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    backend = Tokenizer(
        models.WordLevel({"[PAD]": 0, "[UNK]": 1, "in": 2, "the": 3, "beginning": 4}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    save_pretrained(BertForMaskedLM(our_config("bert", SHAPES[0])), tmp_path, tokenizer)
    text = "in the beginning god"
    assert AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == tokenizer(text).input_ids == [2, 3, 4, 1]


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_settings_that_show_in_training_alone_are_exported(family: str, tmp_path: Path) -> None:
    settings = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2, "initializer_range": 0.01}
    config = BertConfig(**{**our_config(family, SHAPES[0]).to_dict(), **settings, "pad_token_id": 7})
    save_pretrained(BertForSequenceClassification(config), tmp_path)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).config
    assert theirs.initializer_range == 0.01
    assert theirs.pad_token_id == 7
    if family == "bert":
        assert (theirs.hidden_dropout_prob, theirs.attention_probs_dropout_prob) == (0.3, 0.2)
    else:
        assert (theirs.embedding_dropout, theirs.mlp_dropout, theirs.classifier_dropout) == (0.3, 0.3, 0.3)
        assert theirs.attention_dropout == 0.2
