"""The loggers beside metrics.jsonl, each read back with its own reader."""

import csv
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertlab.tasks.pretraining import MaskedLMTask
from bertlab.training.config import RunConfig
from bertlab.training.run import run


def records_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def inspect(run_dir: Path, *options: str) -> str:
    """What wandb's own reader finds in the offline run."""
    folders = list((run_dir / "wandb").glob("offline-run-*"))
    assert len(folders) == 1
    command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", *options, "--json", folders[0]]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def summary_of(run_dir: Path) -> dict[str, Any]:
    return json.loads(inspect(run_dir, "--summary"))


def stream_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in inspect(run_dir).splitlines()]
    return [record[kind] for record in records if record["type"] == kind]


def test_csv(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_dir = run(tiny_config(tmp_path / "run", "logger=csv"), name="tiny", overrides=[]).run_dir
    assert not [warning for warning in caught if "Experiment logs" in str(warning.message)]
    with (run_dir / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    assert rows == [pytest.approx(record) for record in records_of(run_dir)]


def test_tensorboard(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = run(tiny_config(tmp_path / "run", "logger=tensorboard"), name="tiny", overrides=[]).run_dir
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    for name in ("train/loss", "val/loss", "lr", "grad_norm", "tokens", "seconds"):
        expected = [(record["step"], record[name]) for record in records_of(run_dir) if name in record]
        read = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in read] == [step for step, _ in expected]
        assert [value for _, value in read] == pytest.approx([value for _, value in expected])


def test_wandb_offline(
    tmp_path: Path,
    tiny_config: Callable[..., RunConfig],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture,
) -> None:
    overrides = ("logger=wandb", "logger.group=shapes", "logger.tags=[tiny, first]", "logger.project=laboratory")
    caplog.set_level(logging.INFO)
    config = tiny_config(tmp_path / "run", *overrides)
    run_dir = run(config, name="tiny", overrides=[], options={"schedule": "linear"}).run_dir

    said = [record.getMessage() for record in caplog.records if "W&B" in record.getMessage()]
    assert len(said) == 1
    folder = next((run_dir / "wandb").glob("offline-run-*"))
    assert "offline" in said[0]
    assert said[0].endswith(f"wandb sync {folder}")
    assert "wandb" not in "".join(capfd.readouterr())  # nor does the library say anything

    info = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    record = stream_of(run_dir, "run")[0]
    assert record["run_id"] == info["wandb_id"] == info["id"]
    assert (record["project"], record["run_group"], record["job_type"]) == ("laboratory", "shapes", "pretraining")
    assert record["tags"] == ["tiny", "first"]
    assert stream_of(run_dir, "exit")[0].get("exit_code", 0) == 0

    metrics = stream_of(run_dir, "metric")
    assert {"step", "tokens", "seconds"} <= {metric.get("name") for metric in metrics}
    assert [metric["step_metric"] for metric in metrics if metric.get("glob_name") == "*"][-1] == "step"

    summary = summary_of(run_dir)
    stored = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    assert {name: summary["config"][name] for name in stored} == stored
    assert stored["options"] == {"schedule": "linear"}
    last = records_of(run_dir)[-1]
    assert {name: summary["summary"][name] for name in last} == pytest.approx(last)
    history = stream_of(run_dir, "history")
    assert [entry["item"]["step"] for entry in history] == [record["step"] for record in records_of(run_dir)]


def test_wandb_of_a_failed_run_then_of_another(
    tmp_path: Path, tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: MaskedLMTask) -> None:
        raise ZeroDivisionError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(MaskedLMTask, "on_validation_epoch_end", fail)
        with pytest.raises(ZeroDivisionError):
            run(tiny_config(tmp_path / "failed", "logger=wandb"), name="tiny", overrides=[])
    run(tiny_config(tmp_path / "done", "logger=wandb"), name="tiny", overrides=[])

    assert stream_of(tmp_path / "failed", "exit")[0]["exit_code"] == 1
    assert stream_of(tmp_path / "done", "exit")[0].get("exit_code", 0) == 0
    ids = [json.loads((tmp_path / name / "run.json").read_text())["wandb_id"] for name in ("failed", "done")]
    assert ids[0] != ids[1]
    assert summary_of(tmp_path / "done")["summary"]["step"] == 6


@pytest.mark.parametrize("logger", ["none", "csv"])
def test_no_other_logger_leaves_wandb_files(logger: str, tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    run_dir = run(tiny_config(tmp_path / "run", f"logger={logger}"), name="tiny", overrides=[]).run_dir
    assert not (run_dir / "wandb").exists()
    assert json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["wandb_id"] is None


NOT_LOGGED_IN = """
import logging, os, sys
from pathlib import Path
from bertlab.training.config import WandbConfig
from bertlab.training.loggers import build_logger, finish_wandb
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
logger = build_logger(WandbConfig(), Path(sys.argv[1]), "first-run", {"seed": 3})
assert logger.experiment.settings._offline
finish_wandb(0)
"""


def test_not_logged_in_means_offline_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR"):  # whoever runs the tests may be logged in
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", NOT_LOGGED_IN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert "wandb sync" in lines[0]
    assert summary_of(tmp_path / "run")["config"]["seed"] == 3
