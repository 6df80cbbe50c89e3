"""The models: what they compute, what they leave out, and what must not change their answers."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bertlab import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
from bertlab.models.bert import initialize
from bertlab.modules import FeedForward, ScaledDotProductAttention
from bertlab.ops.attention import BACKENDS
from bertlab.ops.loss import IGNORED

SIZES = {
    "vocab_size": 29,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
}
MODERN = {
    "norm": "pre",
    "position": "rope",
    "feedforward": "gated",
    "bias": False,
    "pooler": False,
    "type_vocab_size": 0,
}
# The two presets and each of their options on its own.
KINDS = {
    "bert": {},
    "modern": MODERN,
    "pre": {"norm": "pre"},
    "rope": {"position": "rope"},
    "gated": {"feedforward": "gated"},
    "no_bias": {"bias": False},
    "no_types": {"type_vocab_size": 0},
    "no_pooler": {"pooler": False},
}
CLASSES = [BertModel, BertForMaskedLM, BertForSequenceClassification]
EXACT = {"atol": 1e-12, "rtol": 0.0}


def make(cls: type = BertForMaskedLM, seed: int = 0, **fields: Any) -> Any:
    """A model in float64 and eval mode, with weights large enough to show an error."""
    torch.manual_seed(seed)
    model = cls(BertConfig(**{**SIZES, **fields}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.double().eval()


def answer(model: nn.Module, *inputs: Any, **more: Any) -> Tensor:
    """The tensor that the model is for."""
    out = model(*inputs, **more)
    return out.last_hidden_state if isinstance(model, BertModel) else out.logits


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str, backend: str) -> None:
    lengths = [7, 3, 5]
    for cls in CLASSES:
        model = make(cls, attention_backend=backend, **KINDS[kind])
        rows = [torch.randint(0, 29, (length,)) for length in lengths]
        alone = [answer(model, row[None])[0] for row in rows]
        for width in (7, 8, 24):
            input_ids = torch.randint(0, 29, (3, width))  # the padding may hold anything
            for number, row in enumerate(rows):
                input_ids[number, : len(row)] = row
            mask = torch.arange(width) < torch.tensor(lengths)[:, None]
            for attention_mask in (mask, mask.long()):
                padded = answer(model, input_ids, attention_mask)
                for number, row in enumerate(rows):
                    got = padded[number] if cls is BertForSequenceClassification else padded[number, : len(row)]
                    torch.testing.assert_close(got, alone[number], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_at_some_positions_are_those_of_all(kind: str) -> None:
    model = make(**KINDS[kind])
    input_ids = torch.randint(0, 29, (2, 9))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    labels = torch.randint(0, 29, (2, 9))
    labels[(torch.rand(2, 9) < 0.6) | ~mask] = -100
    positions = (labels.flatten() != -100).nonzero().squeeze(1)
    full = model(input_ids, mask).logits
    assert full.shape == (2, 9, 29)
    wanted = F.cross_entropy(full.flatten(0, 1), labels.flatten(), ignore_index=-100)

    every = model(input_ids, mask, labels=labels)
    assert every.logits is None  # never the whole [b, i, v] in training
    # As in training: a static number of positions, the rest at position 0 with the label -100.
    padded_positions = F.pad(positions, (0, 4))
    padded_labels = F.pad(labels.flatten()[positions], (0, 4), value=-100)
    some = model(input_ids, mask, labels=padded_labels, masked_positions=padded_positions)
    torch.testing.assert_close(some.logits, full.flatten(0, 1)[padded_positions], **EXACT)
    asked = model(input_ids, mask, masked_positions=positions)
    assert asked.loss is None
    torch.testing.assert_close(asked.logits, full.flatten(0, 1)[positions], **EXACT)

    gradients = []
    for loss in (wanted, every.loss, some.loss):
        torch.testing.assert_close(loss, wanted, **EXACT)
        gradients.append(
            torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        )
    for other in gradients[1:]:
        for ours, theirs in zip(gradients[0], other, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, **EXACT)
    scaled = model(input_ids, mask, labels=labels, num_masked=2 * len(positions)).loss
    torch.testing.assert_close(2 * scaled, wanted, **EXACT)


@given(st.lists(st.integers(0, 6), max_size=3), st.integers(0, 100))
@settings(max_examples=15)
def test_the_gradient_does_not_depend_on_the_split(cuts: list[int], seed: int) -> None:
    model = make(seed=seed)
    input_ids, labels = torch.randint(0, 29, (6, 8)), torch.randint(0, 29, (6, 8))
    labels[torch.rand(6, 8) < torch.rand(6, 1)] = -100  # a different number in every row
    labels[0, 0] = 1
    count = int((labels != -100).sum())
    whole = torch.autograd.grad(model(input_ids, labels=labels).loss, list(model.parameters()))
    edges = [0, *sorted(cuts), 6]
    for start, stop in zip(edges, edges[1:], strict=False):
        if start < stop:
            model(input_ids[start:stop], labels=labels[start:stop], num_masked=count).loss.backward()
    difference = torch.stack([(g - p.grad).norm() for g, p in zip(whole, model.parameters(), strict=True)]).norm()
    assert difference <= 1e-12 * torch.stack([g.norm() for g in whole]).norm()


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_trained(kind: str) -> None:
    for cls in CLASSES:
        model = make(cls, **KINDS[kind]).train()
        out = model(torch.randint(0, 29, (2, 24)))
        loss = answer(model, torch.randint(0, 29, (2, 24))).sin().sum()
        if isinstance(model, BertModel) and model.pooler is not None:
            loss = loss + out.pooler_output.sum()
        loss.backward()
        assert not [name for name, p in model.named_parameters() if p.grad is None]


def test_every_token_sees_every_other_token() -> None:
    for kind in KINDS.values():
        model = make(BertModel, **kind)
        input_ids = torch.arange(8)[None]
        before = model(input_ids).last_hidden_state
        for changed in (0, 7):
            other = input_ids.clone()
            other[0, changed] = 20
            moved = (model(other).last_hidden_state - before).abs().amax(-1)
            assert (moved > 1e-6).all()


def test_word_order_matters() -> None:
    for kind in ("bert", "modern"):
        model = make(BertModel, **KINDS[kind])
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        hidden, reverse = (model(x).last_hidden_state for x in (ids, ids.flip(1)))
        assert (hidden - reverse.flip(1)).abs().max() > 1e-3
    # The encoder itself takes a set: without its position encoding it does not know the order.
    model = make(BertModel)
    nn.init.zeros_(model.position.table.weight)
    hidden, reverse = (model(x).last_hidden_state for x in (ids, ids.flip(1)))
    torch.testing.assert_close(hidden, reverse.flip(1), **EXACT)


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_dropout_in_training_alone(kind: str) -> None:
    for cls in CLASSES:
        ids = torch.randint(0, 29, (2, 9))
        model = make(cls, **KINDS[kind])
        assert torch.equal(answer(model, ids), answer(model, ids))
        still = make(cls, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **KINDS[kind])
        torch.testing.assert_close(answer(still.train(), ids), answer(model, ids), **EXACT)
        model.train()
        assert not torch.equal(answer(model, ids), answer(model, ids))
        for only in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, only: 0.3}
            model = make(cls, **rates, **KINDS[kind]).train()
            assert not torch.equal(answer(model, ids), answer(model, ids)), only


def count_calls(model: nn.Module, kinds: tuple[type, ...]) -> dict[type, int]:
    calls = dict.fromkeys(kinds, 0)

    def hook(module: nn.Module, *_: Any) -> None:
        calls[type(module)] += 1

    for module in model.modules():
        if isinstance(module, kinds):
            # On the way in: a recomputation stops as soon as it has what the backward pass needs.
            module.register_forward_pre_hook(hook)
    return calls


@pytest.mark.parametrize("kind", ["bert", "modern"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_checkpointing_recomputes_and_changes_no_gradient(kind: str, backend: str) -> None:
    ids, labels = torch.randint(0, 29, (2, 24)), torch.randint(0, 29, (2, 24))
    mask = torch.arange(24) < torch.tensor([[24], [11]])
    results: dict[str, tuple] = {}
    for choice in ("none", "attention", "full"):
        model = make(gradient_checkpointing=choice, attention_backend=backend, **KINDS[kind]).train()
        calls = count_calls(model, (ScaledDotProductAttention, FeedForward))
        stored = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal stored
            stored += tensor.numel()
            return tensor

        torch.manual_seed(3)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(ids, mask, labels=labels).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        results[choice] = (loss, gradients, calls, stored)
    plain = results["none"]
    for choice, factors in {"none": (1, 1), "attention": (2, 1), "full": (2, 2)}.items():
        loss, gradients, calls, _ = results[choice]
        assert torch.equal(loss, plain[0])
        for ours, theirs in zip(gradients, plain[1], strict=True):
            assert torch.equal(ours, theirs), choice
        assert tuple(calls.values()) == tuple(3 * factor for factor in factors), choice
    assert plain[3] > results["attention"][3] > results["full"][3]


def test_nothing_is_recomputed_in_eval_mode() -> None:
    for choice in ("attention", "full"):
        model = make(gradient_checkpointing=choice)
        calls = count_calls(model, (ScaledDotProductAttention, FeedForward))
        model(torch.randint(0, 29, (2, 9))).logits.sum().backward()
        assert list(calls.values()) == [3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_attention_maps(kind: str) -> None:
    ids, mask = torch.randint(0, 29, (2, 9)), torch.arange(9) < torch.tensor([[9], [4]])
    for cls in CLASSES:
        model = make(cls, **KINDS[kind])
        with_maps = model(ids, mask, output_attentions=True)
        torch.testing.assert_close(answer(model, ids, mask, output_attentions=True), answer(model, ids, mask), **EXACT)
        assert model(ids, mask).attentions is None
        assert len(with_maps.attentions) == 3
        for weights in with_maps.attentions:
            assert weights.shape == (2, 3, 9, 9)
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 9, dtype=torch.float64), **EXACT)
            assert (weights[1, :, :, 4:] == 0).all()


def test_hidden_states() -> None:
    for kind in KINDS.values():
        model = make(BertModel, **kind)
        ids = torch.randint(0, 29, (2, 9))
        out = model(ids, output_hidden_states=True)
        assert len(out.hidden_states) == 4
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
        assert out.attentions is None
        assert model(ids).hidden_states is None
        first = model.embeddings(ids, torch.arange(9), model.position)
        assert torch.equal(out.hidden_states[0], first)


def test_the_classifier() -> None:
    ids, mask = torch.randint(0, 29, (4, 9)), torch.ones(4, 9, dtype=torch.int64)
    for kind in ("bert", "modern"):
        model = make(BertForSequenceClassification, num_labels=5, **KINDS[kind])
        encoded = model.bert(ids, mask)
        pooled = encoded.pooler_output if kind == "bert" else model.head(encoded.last_hidden_state[:, 0])
        labels = torch.tensor([0, 4, 2, 2])
        out = model(ids, mask, labels=labels)
        torch.testing.assert_close(out.logits, model.classifier(pooled), **EXACT)
        torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, labels), **EXACT)
        assert model(ids, mask).loss is None
        one = make(BertForSequenceClassification, num_labels=1, **KINDS[kind])
        targets = torch.tensor([0.5, 1.0, -2.0, 0.0])
        out = one(ids, mask, labels=targets)
        torch.testing.assert_close(out.loss, (out.logits[:, 0] - targets).pow(2).mean(), **EXACT)


def test_the_decoder_is_the_embedding() -> None:
    model = make()
    assert not [name for name, p in model.named_parameters() if "decoder" in name and p.dim() > 1]
    assert sum(1 for p in model.parameters() if p.shape == (29, 12)) == 1
    ids = torch.randint(1, 29, (2, 9))
    hidden = model.head(model.bert(ids).last_hidden_state)
    wanted = hidden @ model.bert.embeddings.tokens.weight.T + model.decoder_bias
    torch.testing.assert_close(model(ids).logits, wanted, **EXACT)
    assert model.bert.pooler is None  # masked-language modelling has no use for it


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_initial_weights(kind: str) -> None:
    torch.manual_seed(0)
    sizes = {**SIZES, "hidden_size": 96, "vocab_size": 500, "intermediate_size": 200}
    for cls in CLASSES:
        model = cls(BertConfig(**sizes, **KINDS[kind]))
        matrices = [p for p in model.parameters() if p.dim() == 2]
        assert matrices
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                assert parameter.abs().max() <= 0.04, name
                # A normal cut off at two deviations keeps 0.8796 of its deviation.
                if parameter.numel() > 1000:
                    error = 5 / (2 * parameter.numel()) ** 0.5
                    assert abs(parameter.std().item() / (0.02 * 0.8796) - 1) < error, name
                    assert abs(parameter.mean().item()) < 5 * 0.0176 / parameter.numel() ** 0.5, name
            else:
                is_norm_weight = name.endswith("weight")
                assert (parameter == (1.0 if is_norm_weight else 0.0)).all(), name
    narrow = nn.Linear(50, 50)
    initialize(narrow, 0.001)
    assert narrow.weight.abs().max() <= 0.002
    assert (narrow.bias == 0).all()


def test_the_same_seed_makes_the_same_model() -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(BertForMaskedLM(BertConfig(**SIZES)))
    pairs = [
        [torch.equal(a, b) for a, b in zip(models[0].parameters(), m.parameters(), strict=True)] for m in models[1:]
    ]
    assert all(pairs[0])
    assert not all(pairs[1])


def test_the_presets_differ_where_they_should() -> None:
    bert, modern = make(BertModel), make(BertModel, **MODERN)
    names = {name.split(".", 1)[0] for name, _ in bert.named_parameters()}
    assert names == {"embeddings", "position", "encoder", "pooler"}
    assert {name.split(".", 1)[0] for name, _ in modern.named_parameters()} == {"embeddings", "encoder"}
    assert isinstance(modern.encoder.layers[0].attention.norm, nn.Identity)  # the embedding is normalised already
    assert isinstance(modern.encoder.layers[1].attention.norm, nn.LayerNorm)
    assert isinstance(modern.encoder.final_norm, nn.LayerNorm)
    assert isinstance(bert.encoder.layers[0].attention.norm, nn.LayerNorm)
    assert isinstance(bert.encoder.final_norm, nn.Identity)
    assert not [name for name, _ in modern.named_parameters() if "bias" in name]


def test_bert_base_has_its_published_size() -> None:
    with torch.device("meta"):
        model = BertModel(BertConfig(vocab_size=30_522))
    assert sum(p.numel() for p in model.parameters()) == 109_482_240


def test_the_backend_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        BertModel(BertConfig(**SIZES))
        BertModel(BertConfig(**SIZES, attention_backend="reference"))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "attention backend: sdpa, and reference for attention dropout on the CPU (auto)",
        "attention backend: reference",
    ]


@pytest.mark.parametrize("fields", [{}, MODERN], ids=["bert", "modern"])
def test_the_whole_training_graph_compiles(fields: dict[str, Any]) -> None:
    model = BertForMaskedLM(BertConfig(**SIZES, **fields, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    ids = torch.randint(0, SIZES["vocab_size"], (2, 6))
    positions, labels = torch.tensor([1, 4, 7]), torch.tensor([2, 3, IGNORED])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses = [f(ids, labels=labels, masked_positions=positions).loss for f in (compiled, model)]
    gradients = [torch.autograd.grad(loss, model.bert.embeddings.tokens.weight)[0] for loss in losses]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_rotary_tables_stay_in_float32() -> None:
    model = BertModel(BertConfig(**SIZES, **MODERN))
    before = model.position.cos.clone()
    model.to(torch.bfloat16)
    assert next(model.parameters()).dtype == torch.bfloat16
    assert torch.equal(model.position.cos, before)


@pytest.mark.parametrize("labels", [torch.zeros(2, 1), torch.zeros(3)])
def test_labels_of_a_classifier_must_be_one_a_row(labels: torch.Tensor) -> None:
    model = BertForSequenceClassification(BertConfig(**SIZES, num_labels=1))
    with pytest.raises(ValueError, match="labels .* must be"):
        model(torch.zeros(2, 4, dtype=torch.int64), labels=labels)


IDS = torch.zeros(2, 5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m(torch.zeros(1, 25, dtype=torch.int64)), "25 tokens, but max_position_embeddings=24"),
        (lambda m: m(IDS, torch.ones(2, 4, dtype=torch.bool)), r"attention_mask \[2, 4\]"),
        (lambda m: m(IDS, torch.ones(2, 5)), "booleans or 0/1 integers"),
        (lambda m: m(IDS, None, IDS), "model.type_vocab_size=0"),
        (lambda m: m(IDS, labels=IDS[:, :4]), r"labels \[2, 4\]"),
        (lambda m: m(IDS, labels=IDS[0], masked_positions=IDS[0, :3]), "labels .* differ"),
    ],
)
def test_inputs_that_do_not_fit(call: Callable[[nn.Module], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(make(**MODERN))


def test_a_config_without_a_vocabulary() -> None:
    with pytest.raises(ValueError, match="vocab_size is not set"):
        BertModel(BertConfig())
