"""The same seed gives the same run, and how a batch is split does not matter."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertlab.training.config import RunConfig
from bertlab.training.run import run

CLOCKED = ("seconds", "tokens_per_second", "mfu")
DROPOUT = ("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1")


def trained(config: RunConfig) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """The records, without what depends on the machine's speed, and the final weights."""
    run_dir = run(config, name="tiny", overrides=[]).run_dir
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return (
        [{name: value for name, value in record.items() if name not in CLOCKED} for record in records],
        load_file(run_dir / "model" / "model.safetensors"),
    )


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm, all tensors together, in float64."""
    a, b = (torch.cat([tensors[name].double().flatten() for name in sorted(tensors)]) for tensors in (one, other))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("model", ["bert", "modern"])
def test_same_seed_same_run(model: str, tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    options = (f"model={model}", "masking.unit=word", *DROPOUT)
    # Neither processes that build batches, nor validations and checkpoints in between, nor a second run in the same
    # process draw from any generator of the training.
    records, weights = trained(tiny_config(tmp_path / "a", *options))
    again, same = trained(tiny_config(tmp_path / "b", *options, "data.num_workers=1", "checkpoint.every_n_steps=1"))
    assert again == records
    assert same.keys() == weights.keys()
    assert all(torch.equal(same[name], weights[name]) for name in weights)

    fewer, unvalidated = trained(tiny_config(tmp_path / "c", *options, "trainer.val_every_n_steps=null"))
    assert fewer[-1] == records[-1]
    assert all(torch.equal(unvalidated[name], weights[name]) for name in weights)

    others, different = trained(tiny_config(tmp_path / "d", *options, "seed=1"))
    assert others[0]["train/loss"] != records[0]["train/loss"]
    assert not any(torch.equal(different[name], weights[name]) for name in weights if weights[name].ndim == 2)


@pytest.mark.parametrize("model", ["bert", "modern"])
@pytest.mark.parametrize(("precision", "limit"), [("32-true", 2e-4), ("64-true", 1e-10)])
def test_the_split_into_micro_batches_does_not_matter(
    model: str, precision: str, limit: float, tmp_path: Path, tiny_config: Callable[..., RunConfig]
) -> None:
    # Adam divides by the gradient's own size, so it blows up the rounding errors of gradients near 0.
    options = (f"model={model}", f"trainer.precision={precision}", "trainer.log_every_n_steps=1")
    whole, weights = trained(tiny_config(tmp_path / "whole", *options, "data.micro_batch_size=8"))
    split, same = trained(tiny_config(tmp_path / "split", *options, "data.micro_batch_size=2"))
    uneven = [record["padding_share"] for record in whole]
    assert min(uneven) > 0.1  # the rows have unequal lengths, so a mean of the micro-batches' means would differ
    for one, other in zip(whole, split, strict=True):
        assert {name for name in one if "/" in name} == {name for name in other if "/" in name}
        for name in one:
            if name != "padding_share":  # micro-batches are padded each to their own longest row
                assert other[name] == pytest.approx(one[name], rel=limit), name
    assert distance(same, weights) <= limit
