"""Every experiment runs, two steps long, and data that was prepared ahead of time is used again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertlab.cli.app import CONFIGS

EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("model", ["bert", "modern"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_two_steps_of_every_experiment(
    experiment: str, model: str, command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path
) -> None:
    arguments = [f"experiment={experiment}", f"model={model}", *tiny_overrides]
    outcome = command("train", *arguments, f'run_dir="{tmp_path / "run"}"')
    assert outcome.code == 0, outcome.err
    info = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert info["status"] == "done"
    assert info["id"].startswith(f"{experiment}-")
    assert info["overrides"][: len(arguments)] == arguments
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["steps"] == 2
    assert 3.0 < summary["val/loss"] < 6.0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert config["options"]["experiment"] == experiment
    assert config["options"]["model"] == model
    assert config["model"]["norm"] == {"bert": "post", "modern": "pre"}[model]


def test_runs_are_named_after_their_experiments(
    command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = ["experiment=demo,mlm_tiny", "-m"]  # where it stands does not matter
    for arguments in (sweep, ["experiment=[demo,mlm_tiny]"], []):
        outcome = command("train", *tiny_overrides, *arguments)
        assert outcome.code == 0, outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # Hydra itself writes nothing
    options = {
        path.name.rpartition("-20")[0]: yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))["options"]
        for path in (tmp_path / "runs").iterdir()
    }
    assert {name: option.get("experiment") for name, option in options.items()} == {
        "demo": "demo",
        "mlm_tiny": "mlm_tiny",
        "demo+mlm_tiny": "demo+mlm_tiny",
        "run": None,
    }


def test_the_embedded_corpus_with_its_own_tokenizer(command: Callable[..., Any], tmp_path: Path) -> None:
    small = ["model.hidden_size=16", "model.intermediate_size=16", "data.sequence_length=32", "logger=none"]
    budget = ["trainer.max_time=null", "trainer.max_steps=2", "trainer.progress_bar=false"]
    outcome = command("train", "experiment=demo", *small, *budget, f'run_dir="{tmp_path / "run"}"')
    assert outcome.code == 0, outcome.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert 8.5 < summary["val/loss"] < 9.5  # ln(8192) is 9.01


@pytest.mark.parametrize("tokenizer", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("unit", ["word", "span"])
def test_tokenizers_and_masking_units(
    tokenizer: str, unit: str, command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path
) -> None:
    arguments = ["experiment=mlm_tiny", *tiny_overrides, f"tokenizer={tokenizer}", "tokenizer.vocab_size=280"]
    outcome = command("train", *arguments, f"masking.unit={unit}", f'run_dir="{tmp_path / "run"}"')
    assert outcome.code == 0, outcome.err
    assert command("fill_mask", str(tmp_path / "run"), "the cat [MASK] on a mat .").code == 0


def test_prepared_data_is_used_again(command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = ["experiment=mlm_tiny", *tiny_overrides, f'data.cache_dir="{cache}"', "data.document=line"]
    first = command("prepare_data", *arguments)
    assert first.code == 0, first.err
    assert "vocabulary: " in first.out
    assert "training: 300 documents" in first.out
    assert "validation: 60 documents" in first.out
    written = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    assert len([path for path in written if path.parent.parent.name == "shards"]) > 3

    assert command("prepare_data", *arguments).out == first.out
    outcome = command("train", *arguments, f'run_dir="{tmp_path / "run"}"')
    assert outcome.code == 0, outcome.err
    # Not even the shape of the batches or the model makes it tokenise again, but the text does.
    wider = [*arguments, "model=modern", "data.sequence_length=32", "data.packing=none", "seed=4"]
    assert command("train", *wider, f'run_dir="{tmp_path / "other"}"').code == 0
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()} == written
    assert command("prepare_data", *arguments, "data.document=file").code == 0
    assert len([path for path in cache.rglob("*") if path.is_file()]) > len(written)


def test_a_tokenizer_from_a_file(command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path) -> None:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(entries) + "\n", encoding="utf-8")
    arguments = [one for one in tiny_overrides if not one.startswith("tokenizer")]
    arguments += ["tokenizer=pretrained", f'tokenizer.path="{tmp_path / "vocab.txt"}"']
    outcome = command("train", "experiment=mlm_tiny", *arguments, f'run_dir="{tmp_path / "run"}"')
    assert outcome.code == 0, outcome.err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert config["model"]["vocab_size"] == len(entries)
