"""One finished run of each preset: what its folder holds, and that transformers opens the model."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from bertlab.cli.fill_mask import fill_mask
from bertlab.data.tokenizer import Tokenizer
from bertlab.hub import load_pretrained
from bertlab.training.config import RunConfig
from bertlab.training.run import RunResult, plain, run

TRAIN_FIELDS = {"train/loss", "grad_norm", "lr", "tokens_per_second", "mfu", "padding_share"}
VAL_FIELDS = {"val/loss", "val/perplexity", "val/masked_accuracy"}
STAMP = {"step", "tokens", "seconds"}
TEXT = "ban [MASK] lust goban [MASK] derd ."


@pytest.fixture(scope="module", params=["bert", "modern"])
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_config: Callable[..., RunConfig]
) -> tuple[RunConfig, RunResult]:
    run_dir = tmp_path_factory.mktemp("runs") / request.param
    config = tiny_config(run_dir, f"model={request.param}", "trainer.max_steps=7", "checkpoint.every_n_steps=2")
    overrides = [f"model={request.param}", "trainer.max_steps=7"]
    logging.getLogger("bertlab").setLevel(logging.INFO)  # as the commands do
    try:
        result = run(config, name="tiny", overrides=overrides, options={"model": request.param})
    finally:
        logging.getLogger("bertlab").setLevel(logging.NOTSET)
    return config, result


def records_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_everything_is_there_and_nothing_else(finished: tuple[RunConfig, RunResult]) -> None:
    run_dir = finished[1].run_dir
    files = {"config.yaml", "run.json", "metrics.jsonl", "summary.json", "train.log"}
    assert {path.name for path in run_dir.iterdir()} == files | {"checkpoints", "tokenizer", "model"}
    assert {path.name for path in (run_dir / "tokenizer").iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (run_dir / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_config_is_resolved_and_plain(finished: tuple[RunConfig, RunResult]) -> None:
    config, result = finished
    stored = yaml.safe_load((result.run_dir / "config.yaml").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.load(result.run_dir / "tokenizer")
    expected = plain(config)
    expected["model"] |= {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    assert stored.pop("options") == {"model": "modern" if config.model.norm == "pre" else "bert"}
    assert stored == expected
    assert "${" not in (result.run_dir / "config.yaml").read_text(encoding="utf-8")


def test_run_json_says_what_the_run_was(finished: tuple[RunConfig, RunResult]) -> None:
    config, result = finished
    info = json.loads((result.run_dir / "run.json").read_text(encoding="utf-8"))
    assert (info["status"], info["exit_code"], info["seed"], info["wandb_id"]) == ("done", 0, 0, None)
    assert re.fullmatch(r"tiny-\d{8}-\d{6}-[0-9a-f]{6}", info["id"])
    assert info["overrides"][1] == "trainer.max_steps=7"
    assert info["versions"]["torch"] == torch.__version__
    assert info["started"] <= info["ended"]
    assert info["command"]
    assert info["host"]
    assert info["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", info["commit"])


def test_each_logged_step_is_one_line_with_all_figures(finished: tuple[RunConfig, RunResult]) -> None:
    run_dir = finished[1].run_dir
    records = records_of(run_dir)
    # Logged: the first step, every second one and the last; validated: every third and the last.
    fields = {int(record["step"]): set(record) for record in records}
    assert [record["step"] for record in records] == [1, 2, 3, 4, 6, 7]
    assert fields[1] == fields[2] == fields[4] == STAMP | TRAIN_FIELDS
    assert fields[3] == STAMP | VAL_FIELDS
    assert fields[6] == fields[7] == STAMP | TRAIN_FIELDS | VAL_FIELDS
    for one, other in zip(records, records[1:], strict=False):
        assert one["tokens"] < other["tokens"]
        assert one["seconds"] <= other["seconds"]
    assert all(0.0 < record["padding_share"] < 1.0 for record in records if "padding_share" in record)
    assert all(record["tokens_per_second"] > 0 for record in records if "mfu" in record)
    assert all(0.0 < record["mfu"] < 1.0 for record in records if "mfu" in record)


def test_summary_has_the_last_figures(finished: tuple[RunConfig, RunResult]) -> None:
    result = finished[1]
    summary = json.loads((result.run_dir / "summary.json").read_text(encoding="utf-8"))
    last = records_of(result.run_dir)[-1]
    assert summary == result.summary
    assert summary["steps"] == last["step"] == 7
    assert summary["tokens"] == last["tokens"]
    assert {name: summary[name] for name in VAL_FIELDS | {"train/loss"}} == {
        name: last[name] for name in VAL_FIELDS | {"train/loss"}
    }
    model = load_pretrained(result.run_dir / "model")
    assert summary["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_log_tells_the_story(finished: tuple[RunConfig, RunResult]) -> None:
    text = (finished[1].run_dir / "train.log").read_text(encoding="utf-8")
    assert f"run folder: {finished[1].run_dir}" in text
    assert "validation: loss" in text
    assert "Traceback" not in text


def test_checkpoints_are_plain_and_the_latest_is_kept(finished: tuple[RunConfig, RunResult]) -> None:
    result = finished[1]
    folder = result.run_dir / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {"step-00000006.ckpt", "last.ckpt"}
    last = torch.load(folder / "last.ckpt", weights_only=True)
    assert last["global_step"] == 7
    assert last["optimizer_states"][0]["state"]
    assert torch.load(folder / "step-00000006.ckpt", weights_only=True)["global_step"] == 6
    exported = load_pretrained(result.run_dir / "model").state_dict()
    assert exported.keys() == {name.removeprefix("model.") for name in last["state_dict"]}
    assert all(torch.equal(last["state_dict"][f"model.{name}"], tensor) for name, tensor in exported.items())


def test_transformers_opens_the_model_and_agrees(finished: tuple[RunConfig, RunResult]) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

    config, result = finished
    folder = str(result.run_dir / "model")
    model, tokenizer = load_pretrained(folder), Tokenizer.load(folder)
    ours = list(fill_mask(model, tokenizer, TEXT, top=5))

    theirs = AutoModelForMaskedLM.from_pretrained(folder)
    assert type(theirs).__name__ == ("ModernBertForMaskedLM" if config.model.norm == "pre" else "BertForMaskedLM")
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = their_tokenizer(TEXT, return_tensors="pt")
    assert encoded["input_ids"][0].tolist() == [tokenizer.cls_id, *tokenizer.encode(TEXT).ids, tokenizer.sep_id]
    with torch.no_grad():
        logits = theirs(**encoded).logits[0][encoded["input_ids"][0] == their_tokenizer.mask_token_id]
        input_ids = encoded["input_ids"]
        torch.testing.assert_close(model(input_ids).logits, theirs(**encoded).logits, rtol=0, atol=1e-4)

    filled = pipeline("fill-mask", model=folder, top_k=5)(TEXT)
    assert len(ours) == len(filled) == 2
    for answers, theirs_answers, row in zip(ours, filled, logits, strict=True):
        probabilities = row.softmax(dim=-1)
        assert [token for token, _ in answers] == [answer["token_str"].strip() for answer in theirs_answers]
        for (_, probability), answer in zip(answers, theirs_answers, strict=True):
            assert probability == pytest.approx(answer["score"], abs=1e-4)
            assert probability == pytest.approx(float(probabilities[answer["token"]]), abs=1e-4)
