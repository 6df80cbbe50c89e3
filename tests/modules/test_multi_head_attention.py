"""The attention modules: the shapes of the article, heads, residual and LayerNorm, with torch as a second opinion."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bertlab.modules import MultiHeadAttention, RotaryPositions, ScaledDotProductAttention
from bertlab.ops import SequenceLayout
from bertlab.ops.attention import BACKENDS, Backend

EXACT = {"atol": 1e-12, "rtol": 0.0}


def make_block(hidden: int, heads: int, seed: int = 0, **options: object) -> MultiHeadAttention:
    """A block in float64 with weights that show an error: norms that scale, biases that are not zero."""
    torch.manual_seed(seed)
    block = MultiHeadAttention(hidden, heads, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return block


def by_heads(block: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The concatenated heads times W_o, a head and a row at a time; mask [b, i, j]."""
    e, d = q.shape[-1], q.shape[-1] // block.num_attention_heads
    weights, biases = block.qkv.weight.split(e), block.qkv.bias.split(e)
    projected = [F.linear(x, w, c) for x, w, c in zip((q, k, v), weights, biases, strict=True)]
    rows = []
    for b in range(len(q)):
        heads = []
        for start in range(0, e, d):
            hq, hk, hv = (x[b, :, start : start + d] for x in projected)
            scores = (hq @ hk.T / d**0.5).masked_fill(~mask[b], -torch.inf)
            heads.append(scores.softmax(-1).nan_to_num() @ hv)
        rows.append(torch.cat(heads, dim=-1))
    return F.linear(torch.stack(rows), block.out.weight, block.out.bias)


def test_the_shapes_of_the_article() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 8, 5, 64), torch.randn(2, 8, 7, 64), torch.randn(2, 8, 7, 64)
    mask = torch.rand(2, 5, 7) < 0.5
    out = ScaledDotProductAttention(dropout=0.1).eval()(q, k, v, mask=mask)
    assert out.shape == (2, 8, 5, 64)
    scores = (q @ k.transpose(2, 3) / 8).masked_fill(~mask[:, None], -torch.inf)
    torch.testing.assert_close(out, scores.softmax(-1).nan_to_num() @ v)

    block = MultiHeadAttention(hidden_size=512, num_attention_heads=8, dropout=0.1)
    x, memory = torch.randn(2, 5, 512), torch.randn(2, 7, 512)
    assert block(x, memory, memory, mask=mask).shape == (2, 5, 512)
    out, weights = block(x, memory, memory, mask=mask, output_attentions=True)
    assert out.shape == (2, 5, 512)
    assert weights.shape == (2, 8, 5, 7)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 100))
@settings(max_examples=30)
def test_it_is_heads_side_by_side(heads: int, width: int, num_queries: int, num_keys: int, seed: int) -> None:
    hidden = heads * width
    block = make_block(hidden, heads, seed)
    q = torch.randn(2, num_queries, hidden, dtype=torch.float64)
    k, v = torch.randn(2, 2, num_keys, hidden, dtype=torch.float64)
    mask = torch.rand(2, num_queries, num_keys) < 0.7
    wanted = F.layer_norm(q + by_heads(block, q, k, v, mask), (hidden,), block.norm.weight, block.norm.bias, 1e-12)
    torch.testing.assert_close(block(q, k, v, mask=mask), wanted, atol=1e-9, rtol=0.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", ["post", "pre", "none"])
@pytest.mark.parametrize("bias", [True, False])
def test_residual_and_norm(norm: str, bias: bool, backend: str) -> None:
    block = make_block(12, 3, norm=norm, bias=bias, layer_norm_eps=1e-5, backend=backend)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    mask = torch.rand(2, 5, 5) < 0.7
    if not bias:
        assert not [name for name, _ in block.named_parameters() if "bias" in name]
        block.qkv.bias = nn.Parameter(torch.zeros(36, dtype=torch.float64))

    def normed(x: Tensor) -> Tensor:
        return F.layer_norm(x, (12,), block.norm.weight, block.norm.bias, 1e-5)

    if norm == "pre":
        wanted = x + by_heads(block, normed(x), normed(x), normed(x), mask)
    else:
        wanted = x + by_heads(block, x, x, x, mask)
        wanted = normed(wanted) if norm == "post" else wanted
    torch.testing.assert_close(block(x, mask=mask), wanted, **EXACT)


@pytest.mark.parametrize("mask_axes", [None, "bj", "bij"])
def test_one_product_or_three(mask_axes: str | None) -> None:
    block = make_block(12, 3)
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    mask = {None: None, "bj": torch.rand(2, 5) < 0.8, "bij": torch.rand(2, 5, 5) < 0.8}[mask_axes]
    results = []
    for inputs in ((x,), (x, x, x), (x, x.clone(), x.clone())):
        out = block(*inputs, mask=mask)
        results.append([out, *torch.autograd.grad(out.sin().sum(), [x, *block.parameters()])])
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [True, False])
def test_torch_has_the_same_module(bias: bool, backend: str) -> None:
    block = make_block(12, 4, norm="none", bias=bias, backend=backend)
    theirs = nn.MultiheadAttention(12, 4, bias=bias, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(
        {
            name: value
            for name, value in {
                "in_proj_weight": block.qkv.weight,
                "in_proj_bias": block.qkv.bias,
                "out_proj.weight": block.out.weight,
                "out_proj.bias": block.out.bias,
            }.items()
            if value is not None
        }
    )
    q, k, v = (torch.randn(2, n, 12, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    pairs = torch.rand(2, 5, 7) < 0.6
    pairs[:, :, 0] = True  # theirs gives NaN for a query without keys
    out, weights = block(q, k, v, mask=pairs, output_attentions=True)
    # In torch true means "may not", and the heads are folded into the batch.
    theirs_mask = (~pairs).repeat_interleave(4, dim=0)
    wanted, wanted_weights = theirs(q, k, v, attn_mask=theirs_mask, average_attn_weights=False)
    torch.testing.assert_close(out, q + wanted, **EXACT)
    torch.testing.assert_close(weights, wanted_weights, **EXACT)
    gradients = [torch.autograd.grad(result.sin().sum(), (q, k, v)) for result in (out, q + wanted)]
    for ours, other in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, other, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_without_any_key(backend: str) -> None:
    block = make_block(8, 2, norm="none", backend=backend)
    x = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[0, 1] = False
    mask[1] = False
    out = block(x, mask=mask)
    nothing = x + block.out.bias
    torch.testing.assert_close(out[0, 1], nothing[0, 1], **EXACT)
    torch.testing.assert_close(out[1], nothing[1], **EXACT)
    (gradient,) = torch.autograd.grad(out[1].sum(), x)
    assert torch.equal(gradient[1], torch.ones(4, 8, dtype=torch.float64))
    assert (gradient[0] == 0).all()


def test_a_layout_is_a_mask_of_keys() -> None:
    block = make_block(8, 2)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    keys = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    torch.testing.assert_close(block(x, layout=SequenceLayout.padded(keys)), block(x, mask=keys), **EXACT)
    with pytest.raises(ValueError, match="not both"):
        block(x, mask=keys, layout=SequenceLayout.padded(keys))


def test_positions_rotate_queries_and_keys_but_not_values() -> None:
    block = make_block(8, 2, norm="none")
    x = torch.randn(1, 1, 8, dtype=torch.float64).expand(1, 6, 8)
    position = RotaryPositions(6, 4, 100.0)
    out, weights = block(x, position=position, output_attentions=True)
    # The same token everywhere: all values are alike, so the output shows no position, while the weights do.
    torch.testing.assert_close(out, block(x), **EXACT)
    assert weights.std() > 1e-3
    shifted = weights[..., 1:, 1:] / weights[..., :-1, :-1]  # scores depend on the distance alone
    ratio = shifted / shifted[..., :1]
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_in_training_alone(backend: str) -> None:
    block = make_block(8, 2, dropout=0.5, backend=backend)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    block.train()
    torch.manual_seed(1)
    first = block(x)
    torch.manual_seed(1)
    assert torch.equal(first, block(x))
    assert not torch.equal(first, block(x))
    block.eval()
    assert torch.equal(block(x), block(x))
    kept = make_block(8, 2, dropout=0.0, backend=backend)
    torch.testing.assert_close(block(x), kept.train()(x), **EXACT)


def test_weights_and_outputs_have_dropouts_of_their_own() -> None:
    x = torch.ones(1, 200, 8, dtype=torch.float64)
    outputs = make_block(8, 2, norm="none", dropout=0.0, hidden_dropout=0.4).train()
    assert outputs.dropout.p == 0.4
    dropped = (outputs(x) == x).double().mean().item()  # the residual alone is left
    assert abs(dropped - 0.4) < 5 * (0.4 * 0.6 / x.numel()) ** 0.5
    weights = make_block(8, 2, norm="none", dropout=0.4, hidden_dropout=0.0).train()
    assert not (weights(x) == x).any()
    assert not torch.equal(weights(x), weights(x))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hidden_size": 10, "num_attention_heads": 3}, "num_attention_heads=3 does not divide hidden_size=10"),
        ({"hidden_size": 8, "num_attention_heads": 2, "norm": "rms"}, "norm=rms is not one of"),
        ({"hidden_size": 8, "num_attention_heads": 2, "backend": "flash"}, "'flash' is not one of auto"),
    ],
)
def test_what_cannot_be_built(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MultiHeadAttention(**arguments)
    with pytest.raises(ValueError, match="'flash' is not one of auto"):
        ScaledDotProductAttention(backend="flash")


def test_auto_takes_the_reference_for_dropout_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    for name, backend in BACKENDS.items():

        def spy(*tensors: Tensor, backend: Backend = backend, name: str = name, **arguments: Any) -> Tensor:
            used.append(name)
            return backend.function(*tensors, **arguments)

        monkeypatch.setitem(BACKENDS, name, dataclasses.replace(backend, function=spy))
    module = ScaledDotProductAttention(dropout=0.1)
    assert "backend=auto" in repr(module)
    q = torch.randn(1, 2, 3, 4)
    module(q, q, q)
    module.eval()(q, q, q)
    ScaledDotProductAttention(dropout=0.1, backend="sdpa")(q, q, q)
    assert used == ["reference", "sdpa", "sdpa"]
