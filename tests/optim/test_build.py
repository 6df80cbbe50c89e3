"""Parameter groups and AdamW, on small modules and on a real model's parameters."""

import pytest
import torch
from torch import nn

from bertlab.optim.build import build_optimizer, parameter_groups
from bertlab.optim.config import OptimizerConfig


class Tied(nn.Module):
    """An embedding whose matrix is also the decoder's, with a norm and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.norm = nn.LayerNorm(4)
        self.dense = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.decoder = nn.Linear(4, 11)
        self.decoder.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.frozen(self.dense(self.norm(self.embedding(input_ids)))))


def identities(parameters: list[nn.Parameter]) -> set[int]:
    return {id(parameter) for parameter in parameters}


def test_matrices_are_decayed_and_nothing_else():
    model = Tied()
    decayed, plain = parameter_groups(model, weight_decay=0.3)
    assert decayed["weight_decay"] == 0.3
    assert plain["weight_decay"] == 0.0
    assert identities(decayed["params"]) == identities([model.embedding.weight, model.dense.weight])
    assert identities(plain["params"]) == identities(
        [model.norm.weight, model.norm.bias, model.dense.bias, model.decoder.bias]
    )


def test_every_trainable_parameter_is_in_one_group_once():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
    listed = [parameter for group in parameter_groups(model, 0.1) for parameter in group["params"]]
    assert len(listed) == len(identities(listed))
    assert identities(listed) == identities(list(model.parameters()))


def test_groups_without_parameters_are_left_out():
    groups = parameter_groups(nn.Linear(3, 3, bias=False), 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1]


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ValueError, match="empty parameter list"):
        build_optimizer(nn.Linear(2, 2).requires_grad_(False), OptimizerConfig())


def test_options_reach_the_optimizer():
    config = OptimizerConfig(lr=3e-4, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2)
    optimizer = build_optimizer(Tied(), config)
    for group, decay in zip(optimizer.param_groups, (0.2, 0.0), strict=True):
        assert group["lr"] == 3e-4
        assert group["betas"] == (0.8, 0.95)
        assert group["eps"] == 1e-6
        assert group["weight_decay"] == decay


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("fused", "expected"), [(None, True), (True, True), (False, False)])
def test_one_step_fused_or_not(dtype, fused, expected):
    torch.manual_seed(0)
    config = OptimizerConfig(lr=0.1, weight_decay=0.5)
    model = Tied().to(dtype)
    optimizer = build_optimizer(model, config, fused=fused)
    assert all(group["fused"] is expected for group in optimizer.param_groups)
    model(torch.arange(11)).square().mean().backward()

    def stepped(parameter: torch.Tensor, decay: float) -> torch.Tensor:
        # Bias correction cancels in the first step of Adam: it moves by lr * g / (|g| + eps).
        assert parameter.grad is not None
        kept = parameter.detach() * (1 - config.lr * decay)
        return kept - config.lr * parameter.grad / (parameter.grad.abs() + config.eps)

    expected_weight = stepped(model.dense.weight, decay=0.5)
    expected_tied = stepped(model.embedding.weight, decay=0.5)
    expected_bias = stepped(model.decoder.bias, decay=0.0)
    frozen = model.frozen.weight.clone()
    optimizer.step()
    torch.testing.assert_close(model.dense.weight.detach(), expected_weight)
    torch.testing.assert_close(model.embedding.weight.detach(), expected_tied)
    torch.testing.assert_close(model.decoder.bias.detach(), expected_bias)
    assert torch.equal(model.frozen.weight, frozen)
    assert model.decoder.weight is model.embedding.weight


def test_devices_without_the_kernel_are_not_fused():
    optimizer = build_optimizer(Tied().to("meta"), OptimizerConfig())
    assert all(group["fused"] is False and group["foreach"] is True for group in optimizer.param_groups)
