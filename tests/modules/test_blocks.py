"""The other blocks of the encoder against their formulas."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
from bertlab.ops.rotary import rotary_tables, rotate


def shaken(module: nn.Module) -> nn.Module:
    """The module in float64 and eval mode, with norms that scale and biases that are not zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module.double().eval()


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def layer_norm(x: Tensor, norm: nn.Module, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * norm.weight
    return scaled if norm.bias is None else scaled + norm.bias


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward(gated: bool, norm: str, bias: bool) -> None:
    torch.manual_seed(0)
    block = shaken(FeedForward(6, 10, gated=gated, norm=norm, bias=bias, layer_norm_eps=1e-3))
    assert any("bias" in name for name, _ in block.named_parameters()) == bias
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    inner = F.linear(layer_norm(x, block.norm, 1e-3) if norm == "pre" else x, block.up.weight, block.up.bias)
    inner = gelu(inner[..., :10]) * inner[..., 10:] if gated else gelu(inner)
    wanted = x + F.linear(inner, block.down.weight, block.down.bias)
    wanted = layer_norm(wanted, block.norm, 1e-3) if norm == "post" else wanted
    torch.testing.assert_close(block(x), wanted, atol=1e-12, rtol=0.0)
    with pytest.raises(ValueError, match="norm=none is not one of post, pre"):
        FeedForward(6, 10, norm="none")


def test_feed_forward_dropout() -> None:
    torch.manual_seed(0)
    block = shaken(FeedForward(50, 10, dropout=0.3, norm="pre"))
    x = torch.randn(40, 50, dtype=torch.float64)
    dropped = (block.train()(x) == x).double().mean().item()
    assert abs(dropped - 0.3) < 5 * (0.3 * 0.7 / 2000) ** 0.5
    assert not (block.eval()(x) == x).any()


def test_heads() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    pooler = shaken(Pooler(6))
    wanted = torch.tanh(x[:, 0] @ pooler.dense.weight.T + pooler.dense.bias)
    torch.testing.assert_close(pooler(x), wanted, atol=1e-12, rtol=0.0)
    for bias in (True, False):
        head = shaken(PredictionHead(6, bias=bias, layer_norm_eps=1e-3))
        wanted = layer_norm(gelu(F.linear(x, head.dense.weight, head.dense.bias)), head.norm, 1e-3)
        torch.testing.assert_close(head(x), wanted, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("types", [0, 2])
def test_embeddings(types: int) -> None:
    torch.manual_seed(0)
    embeddings = shaken(Embeddings(11, 6, types, layer_norm_eps=1e-3))
    positions, position = torch.arange(4), shaken(LearnedPositions(5, 6))
    ids = torch.randint(0, 11, (2, 4))
    x = embeddings.tokens.weight[ids] + position.table.weight[:4]
    if types:
        type_ids = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
        wanted = layer_norm(x + embeddings.types.weight[type_ids], embeddings.norm, 1e-3)
        torch.testing.assert_close(embeddings(ids, positions, position, type_ids), wanted, atol=1e-12, rtol=0.0)
        x = x + embeddings.types.weight[0]
    else:
        with pytest.raises(ValueError, match="model.type_vocab_size=0"):
            embeddings(ids, positions, position, torch.zeros(2, 4, dtype=torch.int64))
    wanted = layer_norm(x, embeddings.norm, 1e-3)
    torch.testing.assert_close(embeddings(ids, positions, position), wanted, atol=1e-12, rtol=0.0)


def test_position_encodings_act_where_they_should() -> None:
    torch.manual_seed(0)
    x, positions = torch.randn(2, 4, 6), torch.tensor([3, 0, 1, 1])
    q, k = torch.randn(2, 2, 3, 4, 2)[:, :, :2]
    for encoding in (PositionEncoding(), RotaryPositions(5, 2, 100.0)):
        assert torch.equal(encoding.embed(x, positions), x)
    for encoding in (PositionEncoding(), LearnedPositions(5, 6)):
        assert encoding.rotate(q, k, positions) == (q, k)
    learned = LearnedPositions(5, 6)
    assert torch.equal(learned.embed(x, positions), x + learned.table.weight[[3, 0, 1, 1]])
    rotary = RotaryPositions(5, 2, 100.0)
    cos, sin = rotary_tables(5, 2, 100.0)
    turned = rotary.rotate(q, k, positions)
    for got, given in zip(turned, (q, k), strict=True):
        for i, number in enumerate(positions.tolist()):
            assert torch.equal(got[:, :, i], rotate(given[:, :, i], cos[number], sin[number]))
    assert not rotary.state_dict()  # the tables follow from the config


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_encoder_is_its_layers_in_order(norm: str) -> None:
    torch.manual_seed(0)
    layers = [EncoderLayer(MultiHeadAttention(8, 2, norm=norm), FeedForward(8, 12, norm=norm)) for _ in range(3)]
    encoder = shaken(Encoder(layers, nn.LayerNorm(8) if norm == "pre" else None))
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    layout = SequenceLayout.padded(torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    states, maps = encoder.forward_with_weights(x, layout, PositionEncoding())
    assert len(states) == 4
    assert len(maps) == 3
    hidden = x
    for number, layer in enumerate(layers):
        assert torch.equal(states[number], hidden)
        _, weights = layer.attention(hidden, layout=layout, output_attentions=True)
        assert torch.equal(maps[number], weights)
        hidden = layer.feedforward(layer.attention(hidden, layout=layout))
    torch.testing.assert_close(states[-1], encoder.final_norm(hidden), atol=1e-12, rtol=0.0)
    torch.testing.assert_close(encoder(x, layout, PositionEncoding()), states[-1], atol=1e-12, rtol=0.0)
    assert isinstance(encoder.final_norm, nn.LayerNorm) == (norm == "pre")
