"""fill_mask and export on a run that was trained for this."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertlab.cli.fill_mask import fill_mask
from bertlab.data.tokenizer import Tokenizer
from bertlab.hub import load_pretrained


@pytest.fixture
def run_dir(tmp_path: Path, command: Callable[..., Any], tiny_overrides: list[str]) -> Path:
    place = f'run_dir="{tmp_path / "run"}"'
    outcome = command("train", "experiment=demo", *tiny_overrides, "data.sequence_length=12", place)
    assert outcome.code == 0, outcome.err
    return tmp_path / "run"


def answers_of(out: str) -> list[list[tuple[float, str]]]:
    """The printed answers, a list for each mask."""
    blocks = out.split("\n", 1)[1].strip("\n").split("\n\n")
    pattern = re.compile(r"  (\d\.\d{4})  (\S+)")
    return [[(float(m[1]), m[2]) for m in map(pattern.fullmatch, block.splitlines()) if m] for block in blocks]


def test_fill_mask(run_dir: Path, command: Callable[..., Any]) -> None:
    text = "the cat [MASK] on a mat and [MASK] dog ran ."
    outcome = command("fill_mask", str(run_dir), text)
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == text
    assert outcome.err == ""
    printed = answers_of(outcome.out)
    assert [len(block) for block in printed] == [5, 5]
    for block in printed:
        assert block == sorted(block, key=lambda answer: -answer[0])
        assert sum(probability for probability, _ in block) < 1.0

    # The textbook way: all logits, then the softmax over the vocabulary at each mask.
    tokenizer, model = Tokenizer.load(run_dir / "model"), load_pretrained(run_dir / "model")
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode(text).ids, tokenizer.sep_id]])
    with torch.no_grad():
        probabilities = model(ids).logits[ids == tokenizer.mask_id].softmax(-1)
    for block, row in zip(printed, probabilities, strict=True):
        best = row.topk(5)
        assert [token for _, token in block] == [tokenizer.backend.id_to_token(int(i)) for i in best.indices]
        assert [probability for probability, _ in block] == pytest.approx(best.values.tolist(), abs=1e-4)

    # The run folder, its model folder and the number of answers are interchangeable.
    assert command("fill_mask", str(run_dir / "model"), text).out == outcome.out
    two = answers_of(command("fill_mask", str(run_dir), text, "--top", "2").out)
    assert two == [block[:2] for block in printed]
    everything = answers_of(command("fill_mask", str(run_dir), text, "--top", "100000").out)
    assert len(everything[0]) <= tokenizer.vocab_size
    assert sum(probability for _, probability in next(fill_mask(model, tokenizer, text, 100_000))) == pytest.approx(1.0)


def test_fill_mask_refusals(run_dir: Path, command: Callable[..., Any], tmp_path: Path) -> None:
    for arguments, fragment in (
        ([str(run_dir), "no gap here"], "there is no [MASK] in 'no gap here'"),
        ([str(run_dir), "[MASK] " + "cat " * 600], "tokens, but the model takes 512"),
        ([str(run_dir), "[MASK] .", "--top", "0"], "--top 0 must be at least 1"),
        ([str(tmp_path / "nowhere"), "[MASK] ."], "nowhere"),
        ([str(tmp_path), "[MASK] ."], str(tmp_path)),
        (["someone/some-model", "[MASK] ."], "someone/some-model"),
    ):
        outcome = command("fill_mask", *arguments)
        assert outcome.code == 2, outcome.err
        assert all(line.startswith("error: ") for line in outcome.err.splitlines())
        assert fragment in outcome.err
        assert outcome.out == "" or outcome.out.strip() == arguments[1].strip()
    assert command("fill_mask", str(run_dir)).code == 2  # argparse's own


def test_export(run_dir: Path, command: Callable[..., Any], tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    out = tmp_path / "exported model"
    outcome = command("export", str(run_dir), str(out))
    assert outcome.code == 0, outcome.err
    assert str(out) in outcome.out
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    encoded = tokenizer("the cat [MASK] on a mat .", return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(
            model(**encoded).logits, load_pretrained(run_dir)(encoded["input_ids"]).logits, rtol=0, atol=1e-4
        )

    for arguments, fragment in (
        ([str(run_dir), str(out)], "not an empty folder"),
        ([str(tmp_path / "nowhere"), str(tmp_path / "new")], "nowhere is not a run folder"),
        ([str(run_dir / "model"), str(tmp_path / "new")], "is not a run folder"),
    ):
        refused = command("export", *arguments)
        assert refused.code == 2
        assert refused.err.startswith("error: ")
        assert fragment in refused.err
    assert not (tmp_path / "new").exists()
