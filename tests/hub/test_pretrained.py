"""Model folders: what is written, what is read, and what is refused with which words."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bertlab import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
from bertlab.errors import UserError
from bertlab.hub import layout_of, load_pretrained, save_pretrained

SIZES = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 10,
    "max_position_embeddings": 16,
}
MODERN = {
    "norm": "pre",
    "position": "rope",
    "feedforward": "gated",
    "bias": False,
    "pooler": False,
    "type_vocab_size": 0,
}
PRESETS = {"bert": {}, "modern": MODERN}
VARIANTS = [{"norm": "pre"}, {**MODERN, "position": "learned", "gradient_checkpointing": "full"}, {"bias": False}]
CLASSES = [BertModel, BertForMaskedLM, BertForSequenceClassification]


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    values = json.loads(file.read_text())
    values.update(changes)
    file.write_text(json.dumps({key: value for key, value in values.items() if value != "REMOVED"}))


def edit_tensors(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(change(tensors), file)


def saved(folder: Path, cls: type = BertForMaskedLM, **fields: Any) -> Any:
    torch.manual_seed(len(fields))
    model = cls(BertConfig(**SIZES, **fields)).eval()
    save_pretrained(model, folder)
    return model


def assert_same(first: torch.nn.Module, second: torch.nn.Module) -> None:
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, value in first.state_dict().items():
        assert torch.equal(value.float(), second.state_dict()[name]), name


@pytest.mark.parametrize("fields", [*PRESETS.values(), *VARIANTS])
@pytest.mark.parametrize("cls", CLASSES)
def test_a_saved_model_comes_back(cls: type, fields: dict, tmp_path: Path) -> None:
    model = saved(tmp_path, cls, num_labels=4, hidden_dropout_prob=0.3, initializer_range=0.1, pad_token_id=3, **fields)
    back = load_pretrained(tmp_path, cls)
    assert_same(model, back)
    assert not back.training
    expected = model.config.to_dict()
    if cls is not BertForSequenceClassification and layout_of(model.config):
        expected["num_labels"] = 2  # transformers' format has classes for classifiers alone
    assert back.config.to_dict() == expected


def test_the_file_is_what_transformers_writes(tmp_path: Path) -> None:
    saved(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert not [name for name in file.keys() if "decoder" in name]  # noqa: SIM118 (it is not a mapping)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert config["model_type"] == "bert"
    assert config["dtype"] == "float32"
    umask = os.umask(0)
    os.umask(umask)
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o666 & ~umask, file
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("fields", VARIANTS)
def test_what_transformers_does_not_have_is_said(
    fields: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = saved(tmp_path, **fields)
    assert layout_of(model.config) is None
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bertlab"
    [message] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "bertlab.load_pretrained opens it" in message
    assert "\n" not in message
    for field, value in fields.items():
        if field not in MODERN or value != MODERN[field]:
            assert (f"model.{field}={value}" in message) == (field != "gradient_checkpointing")


def test_the_layout_follows_from_the_fields() -> None:
    assert layout_of(BertConfig(**SIZES)) == "bert"
    assert layout_of(BertConfig(**SIZES, **MODERN)) == "modernbert"
    assert layout_of(BertConfig(**SIZES, **{**MODERN, "bias": True})) == "modernbert"
    assert layout_of(BertConfig(**SIZES, type_vocab_size=0)) is None
    assert layout_of(BertConfig(**SIZES, attention_backend="reference", gradient_checkpointing="full")) == "bert"


def test_a_run_folder_stands_for_its_model(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    assert_same(model, load_pretrained(tmp_path))
    assert_same(model, load_pretrained(str(tmp_path)))


def test_saving_replaces_and_never_leaves_half_a_file(tmp_path: Path) -> None:
    first = saved(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    # A process that is killed while it writes the weights.
    script = f"""
import os, safetensors.torch
from bertlab import BertConfig, BertForMaskedLM, save_pretrained
real = safetensors.torch.save_file
def killed(tensors, file, metadata):
    real(tensors, file, metadata)
    os.truncate(file, 100)
    os._exit(9)
safetensors.torch.save_file = killed
save_pretrained(BertForMaskedLM(BertConfig(**{SIZES!r})), {str(tmp_path)!r})
"""
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 9
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert_same(first, load_pretrained(tmp_path))
    second = saved(tmp_path, **MODERN)
    assert_same(second, load_pretrained(tmp_path))


def test_half_precision_opens_as_float32(tmp_path: Path) -> None:
    model = BertForMaskedLM(BertConfig(**SIZES)).bfloat16()
    save_pretrained(model, tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    back = load_pretrained(tmp_path)
    assert {parameter.dtype for parameter in back.parameters()} == {torch.float32}
    assert_same(model, back)


@pytest.mark.parametrize("fields", [*PRESETS.values(), VARIANTS[0]])
def test_a_masked_model_becomes_an_encoder_or_a_classifier(
    fields: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = saved(tmp_path, **fields)
    caplog.set_level(logging.INFO)
    encoder = load_pretrained(tmp_path, BertModel)
    assert encoder.pooler is None  # rather than one that was never trained
    assert_same(model.bert, encoder)
    caplog.clear()
    torch.manual_seed(5)
    classifier = load_pretrained(tmp_path, BertForSequenceClassification)
    message = next(record.getMessage() for record in caplog.records if "fresh" in record.getMessage())
    assert "classifier.weight" in message
    assert "classifier.bias" in message
    assert ("pooler" in message) == model.config.pooler
    for name, value in model.bert.state_dict().items():
        assert torch.equal(value, classifier.bert.state_dict()[name])
    if classifier.head is not None:
        assert_same(model.head, classifier.head)
    assert 0 < classifier.classifier.weight.std() < 0.05
    torch.manual_seed(5)
    again = load_pretrained(tmp_path, BertForSequenceClassification)
    assert torch.equal(classifier.classifier.weight, again.classifier.weight)


def test_old_names(tmp_path: Path) -> None:
    """Files of the first years: gamma and beta, position ids, the decoder beside the embedding it is tied to."""
    model = saved(tmp_path)

    def age(tensors: dict) -> dict:
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in tensors.items()
        }
        old["bert.embeddings.position_ids"] = torch.arange(16)[None]
        old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
        return old

    edit_tensors(tmp_path, age)
    assert "bert.embeddings.LayerNorm.gamma" in load_file(tmp_path / "model.safetensors")
    assert_same(model, load_pretrained(tmp_path))


@pytest.mark.parametrize("fields", PRESETS.values(), ids=PRESETS)
def test_the_prefix_may_be_there_or_not(fields: dict, tmp_path: Path) -> None:
    base = saved(tmp_path / "base", BertModel, **fields)
    prefix = "model." if fields else "bert."
    assert not any(name.startswith(prefix) for name in load_file(tmp_path / "base" / "model.safetensors"))
    edit_tensors(tmp_path / "base", lambda tensors: {prefix + name: value for name, value in tensors.items()})
    assert_same(base, load_pretrained(tmp_path / "base", BertModel))


def test_weights_in_several_files(tmp_path: Path) -> None:
    model = saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, group in parts.items():
        save_file({name: tensors[name] for name in group}, tmp_path / file)
    weight_map = {name: file for file, group in parts.items() for name in group}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same(model, load_pretrained(tmp_path))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match="model-00002-of-00002.safetensors"):
        load_pretrained(tmp_path)


def without(*names: str) -> Any:
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("cls", "change", "words"),
    [
        (
            BertForMaskedLM,
            without("bert.encoder.layer.1.attention.self.key.bias", "cls.predictions.bias"),
            ["bert.encoder.layer.1.attention.self.key.bias: missing", "cls.predictions.bias: missing"],
        ),
        (
            BertForMaskedLM,
            lambda tensors: tensors | {"bert.encoder.layer.2.output.dense.bias": torch.zeros(12)},
            ["bert.encoder.layer.2.output.dense.bias: not a part of the model"],
        ),
        (
            BertForMaskedLM,
            lambda tensors: tensors | {"bert.embeddings.LayerNorm.bias": torch.zeros(13)},
            ["bert.embeddings.LayerNorm.bias: [13], not [12]"],
        ),
        (BertForSequenceClassification, without("bert.pooler.dense.bias"), ["bert.pooler.dense.bias: missing"]),
        (BertForSequenceClassification, without("classifier.bias"), ["classifier.bias: missing"]),
        (BertModel, without("pooler.dense.bias"), ["bert.pooler.dense.bias: missing"]),
    ],
)
def test_tensors_that_do_not_fit_are_listed(cls: type, change: Any, words: list[str], tmp_path: Path) -> None:
    saved(tmp_path, cls)
    edit_tensors(tmp_path, change)
    with pytest.raises(UserError) as error:
        load_pretrained(tmp_path, cls)
    for word in [*words, str(tmp_path / "model.safetensors")]:
        assert word in str(error.value)


def test_an_encoder_alone_is_not_a_masked_model(tmp_path: Path) -> None:
    saved(tmp_path, BertModel)
    with pytest.raises(UserError, match=r"cls\.predictions\.transform\.dense\.weight: missing"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("preset", "changes", "words"),
    [
        ("bert", {"hidden_act": "relu"}, "hidden_act=relu is not supported, only gelu is"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type=relative_key"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ("bert", {"vocab_size": "REMOVED"}, "vocab_size is missing"),
        ("bert", {"hidden_size": "12"}, "hidden_size is missing or not an integer"),
        ("bert", {"layer_norm_eps": [1]}, "layer_norm_eps=[1] is not a number"),
        ("bert", {"initializer_range": "x"}, "initializer_range='x' is not a number"),
        ("bert", {"type_vocab_size": True}, "type_vocab_size=True is not an integer"),
        ("modern", {"rope_parameters": "linear"}, "rope_type=linear"),
        ("modern", {"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, "rope_theta='x' is not a number"),
        ("modern", {"layer_types": "REMOVED", "global_attn_every_n_layers": 0}, "global_attn_every_n_layers=0"),
        ("bert", {"num_attention_heads": 5}, "num_attention_heads=5 does not divide"),
        ("bert", {"model_type": "roberta"}, "model_type=roberta cannot be opened; these can: bert, modernbert"),
        ("modern", {"classifier_pooling": "mean"}, "classifier_pooling=mean is not supported, only cls is"),
        ("modern", {"hidden_activation": "silu"}, "hidden_activation=silu"),
        ("modern", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("modern", {"layer_types": "REMOVED"}, "layer_types"),
        ("modern", {"mlp_bias": True}, "mlp_bias=True"),
        ("modern", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}}, "rope_type=yarn"),
        ("modern", {"decoder_bias": False}, "decoder_bias=False"),
    ],
)
def test_what_our_models_are_not_is_refused(preset: str, changes: dict, words: str, tmp_path: Path) -> None:
    saved(tmp_path, **PRESETS[preset])
    edit_config(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        load_pretrained(tmp_path)
    assert words in str(error.value)
    assert "config.json" in str(error.value)


def test_older_words_for_the_same_thing(tmp_path: Path) -> None:
    model = saved(tmp_path, **MODERN, rope_theta=300.0)
    old = {"layer_types": "REMOVED", "rope_parameters": "REMOVED", "pad_token_id": None, "num_labels": 7}
    edit_config(tmp_path, **old, global_attn_every_n_layers=1, global_rope_theta=300.0)
    back = load_pretrained(tmp_path)
    assert_same(model, back)
    assert back.config.rope_theta == 300.0
    assert back.config.pad_token_id == 0
    assert back.config.num_labels == 7


def test_a_dropout_that_has_no_field_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, hidden_dropout_prob=0.2)
    edit_config(tmp_path, classifier_dropout=0.4)
    assert load_pretrained(tmp_path).config.hidden_dropout_prob == 0.2
    assert "classifier_dropout=0.4" in caplog.text


def test_unknown_fields_of_our_own_format(tmp_path: Path) -> None:
    saved(tmp_path, norm="pre")
    edit_config(tmp_path, windows=3)
    with pytest.raises(UserError, match="config.json: unknown fields of BertConfig: windows"):
        load_pretrained(tmp_path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is a pickle"):
        load_pretrained(tmp_path)


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds neither config.json nor model/config.json"):
        load_pretrained(tmp_path)
    with pytest.raises(UserError, match="nowhere does not exist"):
        load_pretrained(tmp_path / "nowhere")
    file = tmp_path / "weights.txt"
    file.write_text("no")
    with pytest.raises(UserError, match="is a file"):
        load_pretrained(file)
    with pytest.raises(UserError, match="cannot be made"):
        save_pretrained(BertModel(BertConfig(**SIZES)), file)
    saved(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0nonsense")
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        load_pretrained(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text('{"model_type": ')
    with pytest.raises(UserError, match=r"config\.json is not JSON"):
        load_pretrained(tmp_path / "a")


def test_a_hub_that_cannot_be_reached() -> None:
    with pytest.raises(
        UserError, match="somebody/some-model is no folder here, and the Hugging Face hub did not give it"
    ):
        load_pretrained("somebody/some-model")


def test_other_classes_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match="not one of BertModel"):
        load_pretrained(tmp_path, torch.nn.Linear)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="not one of BertModel"):
        save_pretrained(torch.nn.Linear(1, 1), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(("preset", "token_types"), [("bert", True), ("modern", False)])
def test_our_tokenizer_is_told_what_the_model_takes(preset: str, token_types: bool, tmp_path: Path) -> None:
    class Recorder:
        def save_pretrained(self, folder: Path, *, token_types: bool, model_max_length: int) -> None:
            (folder / "tokenizer.json").write_text(json.dumps([token_types, model_max_length]))

    save_pretrained(BertForMaskedLM(BertConfig(**SIZES, **PRESETS[preset])), tmp_path, Recorder())
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == [token_types, 16]


def test_importing_the_package_is_quick() -> None:
    script = "import sys, bertlab.hub; assert 'torch' not in sys.modules; bertlab.hub.load_pretrained; "
    script += "assert 'transformers' not in sys.modules and 'huggingface_hub' not in sys.modules"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-at-all/model", "/proc/nothing/there"])
def test_names_of_no_folder(name: str) -> None:
    with pytest.raises(UserError):
        load_pretrained(name)
    with pytest.raises(UserError):
        save_pretrained(BertModel(BertConfig(**SIZES)), name)
