"""Runs that are refused, fail, or do without something; and exports of what they left."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertlab.cli.export import main as export_main
from bertlab.data.batch import Batch
from bertlab.data.tokenizer import Tokenizer
from bertlab.errors import RunFailure, UserError
from bertlab.hub import load_pretrained
from bertlab.tasks.pretraining import MaskedLMTask
from bertlab.training.checkpoint import AtomicCheckpointIO, read_weights
from bertlab.training.config import RunConfig
from bertlab.training.export import export_run
from bertlab.training.run import run
from bertlab.training.run_dir import check_free, make_run_id


def info_of(run_dir: Path) -> dict[str, object]:
    return json.loads((run_dir / "run.json").read_text(encoding="utf-8"))


@pytest.fixture
def failing_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the training fail at a micro-batch."""
    training_step = MaskedLMTask.training_step

    def arrange(number: int) -> None:
        def step(self: MaskedLMTask, batch: Batch, batch_idx: int) -> torch.Tensor:
            if batch_idx == number:
                raise RuntimeError("the disk is on fire")
            return training_step(self, batch, batch_idx)

        monkeypatch.setattr(MaskedLMTask, "training_step", step)

    return arrange


def test_a_run_folder_that_holds_something_is_left_alone(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not empty"):
        run(tiny_config(taken), name="tiny", overrides=[])
    assert [path.name for path in taken.iterdir()] == ["notes.txt"]
    assert (taken / "notes.txt").read_text() == "mine"
    with pytest.raises(UserError, match="is a file"):
        check_free(str(taken / "notes.txt"))


def test_an_empty_run_folder_is_used(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    (tmp_path / "empty").mkdir()
    result = run(tiny_config(tmp_path / "empty"), name="tiny", overrides=[])
    assert result.run_dir == tmp_path / "empty"
    assert info_of(result.run_dir)["status"] == "done"


def test_without_run_dir_it_is_fresh_below_runs(
    tmp_path: Path, tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(tiny_config(tmp_path / "unused", "run_dir=null"), name="tiny", overrides=[])
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert result.run_dir == Path("runs") / str(info_of(result.run_dir)["id"])
    assert make_run_id("a") != make_run_id("a")  # within the same second


def test_wrong_input_leaves_no_folder(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    with pytest.raises(UserError, match=r"model\.vocab_size=20 is smaller than the tokenizer's"):
        run(tiny_config(tmp_path / "run", "model.vocab_size=20"), name="tiny", overrides=[])
    long_rows = ("data.packing=join", "data.sequence_length=100000", "model.max_position_embeddings=100000")
    with pytest.raises(UserError, match="sequence_length"):  # the corpus does not fill one row
        run(tiny_config(tmp_path / "run", *long_rows), name="tiny", overrides=[])
    assert not (tmp_path / "run").exists()


def test_larger_vocabulary_than_the_tokenizers(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    result = run(tiny_config(tmp_path / "run", "model.vocab_size=512"), name="tiny", overrides=[])
    assert load_pretrained(result.run_dir / "model").config.vocab_size == 512


def test_without_validation_files(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    result = run(tiny_config(tmp_path / "run", "data.val_files=[]"), name="tiny", overrides=[])
    assert result.summary["steps"] == 6
    assert not any(name.startswith("val/") for name in result.summary)
    assert "val/" not in (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8")


def test_validation_only_at_the_end(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    config = tiny_config(tmp_path / "run", "trainer.val_every_n_steps=null", "trainer.progress_bar=true")
    result = run(config, name="tiny", overrides=[])
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "val/loss" in record] == [6]
    assert "train/loss" in records[-1]


BUDGETS = {"steps": ["trainer.max_steps=6"], "clock": ["trainer.max_steps=null", "trainer.max_time=00:00:00:01"]}


@pytest.mark.parametrize("kind", list(BUDGETS))
def test_progress_bar(
    kind: str, tmp_path: Path, tiny_config: Callable[..., RunConfig], capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(tmp_path / "run", *BUDGETS[kind], "trainer.progress_bar=true", "trainer.log_every_n_steps=1")
    result = run(config, name="tiny", overrides=[])
    last = capfd.readouterr().err.rstrip().rpartition("\r")[2]
    assert {"steps": "6/6 steps", "clock": "1/1 s"}[kind] in last
    assert f"step={result.summary['steps']:,}" in last
    for figure in ("training: 100%", "loss=", "tokens/s=", "val="):
        assert figure in last


def test_a_failure_is_recorded(
    tmp_path: Path, tiny_config: Callable[..., RunConfig], failing_at: Callable[[int], None]
) -> None:
    failing_at(9)
    with pytest.raises(RuntimeError, match="on fire"):
        run(tiny_config(tmp_path / "run", "logger=csv"), name="tiny", overrides=[])
    info = info_of(tmp_path / "run")
    assert (info["status"], info["exit_code"]) == ("failed", 1)
    assert info["ended"]
    text = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert "the run failed" in text
    assert "the disk is on fire" in text
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 4]  # what was measured until then
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "summary.json").exists()
    open_files = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.FileHandler)]
    assert not [handler for handler in open_files if str(tmp_path) in handler.baseFilename]


def test_export_of_a_finished_run(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    run_dir = run(tiny_config(tmp_path / "run"), name="tiny", overrides=[]).run_dir
    export_run(run_dir, tmp_path / "out")
    for path in (run_dir / "model").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(UserError, match="not an empty folder"):
        export_run(run_dir, tmp_path / "out")


@pytest.mark.parametrize("model", ["bert", "modern"])
def test_export_of_a_run_that_has_checkpoints_only(
    model: str, tmp_path: Path, tiny_config: Callable[..., RunConfig], failing_at: Callable[[int], None]
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    failing_at(10)  # in the sixth step
    config = tiny_config(tmp_path / "run", f"model={model}", "checkpoint.every_n_steps=2")
    with pytest.raises(RuntimeError):
        run(config, name="tiny", overrides=[])
    export_run(tmp_path / "run", tmp_path / "out")

    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert checkpoint.name == "step-00000004.ckpt"
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    exported = load_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, saved[f"model.{name}"]) for name, tensor in exported.state_dict().items())
    text = "ban derd [MASK] ."
    ids = Tokenizer.load(tmp_path / "run" / "tokenizer").encode(text).ids
    encoded = AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt")
    assert encoded["input_ids"][0, 1:-1].tolist() == ids
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(exported(encoded["input_ids"]).logits, theirs(**encoded).logits, rtol=0, atol=1e-4)


def test_export_of_what_is_no_run(
    tmp_path: Path, tiny_config: Callable[..., RunConfig], failing_at: Callable[[int], None]
) -> None:
    with pytest.raises(UserError, match="no run.json"):
        export_run(tmp_path, tmp_path / "out")
    failing_at(0)
    with pytest.raises(RuntimeError):
        run(tiny_config(tmp_path / "run"), name="tiny", overrides=[])
    with pytest.raises(UserError, match="before its first checkpoint"):
        export_run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_diverged_run_ends_with_one_message(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    overrides = [
        "optimizer.lr=1e30",
        "optimizer.max_grad_norm=null",
        "trainer.log_every_n_steps=1",
        "schedule=constant",
    ]
    with pytest.raises(RunFailure, match=r"train/loss is nan at step \d.*optimizer\.lr"):
        run(tiny_config(tmp_path / "run", *overrides), name="tiny", overrides=[])
    info = info_of(tmp_path / "run")
    assert (info["status"], info["exit_code"]) == ("failed", 1)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    assert records[0]["train/loss"] > 0
    assert records[-1]["train/loss"] is None
    assert not (tmp_path / "run" / "model").exists()


def test_what_wandb_comes_upon_does_not_touch_the_run(
    tmp_path: Path, tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    finish = wandb.finish

    def fail(**arguments: Any) -> None:
        assert info_of(tmp_path / "run")["status"] == "done"  # written before W&B takes its time
        finish(**arguments)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(wandb, "finish", fail)
    run(tiny_config(tmp_path / "run", "logger=wandb"), name="tiny", overrides=[])
    assert info_of(tmp_path / "run")["status"] == "done"
    assert "no route to host" in caplog.text
    assert "wandb sync" in caplog.text


def test_wandb_that_does_not_start(
    tmp_path: Path, tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "sideways")
    with pytest.raises(UserError, match="W&B does not start: .*logger=csv"):
        run(tiny_config(tmp_path / "run", "logger=wandb"), name="tiny", overrides=[])
    assert info_of(tmp_path / "run")["exit_code"] == 2


def test_a_checkpoint_is_replaced_in_one_stroke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {"model.w": torch.ones(2)}}, file)

    def half(content: object, path: Path) -> None:
        assert path.parent == file.parent  # a rename within one file system
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, file)
    assert torch.equal(read_weights(file)["w"], torch.ones(2))
    assert list(file.parent.iterdir()) == [file]
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(UserError, match="last.ckpt is not a checkpoint that can be read"):
        read_weights(file)


def test_an_export_that_was_cut_short_does_not_hide_the_checkpoints(
    tmp_path: Path, tiny_config: Callable[..., RunConfig]
) -> None:
    run_dir = run(tiny_config(tmp_path / "run"), name="tiny", overrides=[]).run_dir
    (run_dir / "model" / "config.json").unlink()  # it is written last
    assert export_run(run_dir, tmp_path / "out") == "bert"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (run_dir / "model/model.safetensors").read_bytes()


def test_export_says_who_can_open_it(
    tmp_path: Path, tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for fields, opener in ((["model.norm=pre"], "bertlab.load_pretrained"), ([], "AutoModelForMaskedLM")):
        run_dir = run(tiny_config(tmp_path / opener, *fields), name="tiny", overrides=[]).run_dir
        monkeypatch.setattr(sys, "argv", ["export.py", str(run_dir), str(tmp_path / f"{opener} out")])
        with pytest.raises(SystemExit) as stop:
            export_main()
        assert stop.value.code == 0
        assert f"{opener}" in capsys.readouterr().out
