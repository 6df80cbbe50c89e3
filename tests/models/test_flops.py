"""The formula for the work of a training step against torch's count of the products that it really computes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bertlab import BertConfig, BertForMaskedLM
from bertlab.models.flops import training_flops


@pytest.mark.parametrize("feedforward", ["plain", "gated"])
@pytest.mark.parametrize("layers", [1, 3])
def test_training_flops_are_those_of_a_step(feedforward: str, layers: int) -> None:
    config = BertConfig(
        vocab_size=50,
        hidden_size=12,
        num_hidden_layers=layers,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=16,
        feedforward=feedforward,
        attention_backend="reference",
    )
    model = BertForMaskedLM(config)
    input_ids, masked_positions = torch.randint(0, 50, (2, 16)), torch.tensor([1, 5, 20])
    with FlopCounterMode(display=False) as counter:
        model(input_ids, labels=input_ids[0, :3], masked_positions=masked_positions).loss.backward()
    assert counter.get_total_flops() == training_flops(config, 2, 16, 3)
