"""--help and --cfg job answer quickly: real processes, which must not load the heavy libraries."""

import dataclasses
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertlab.cli.app import CONFIGS
from bertlab.cli.schema import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "lightning", "pytorch_lightning", "transformers", "datasets", "wandb")


def fastest(command: list[str]) -> tuple[subprocess.CompletedProcess[str], float]:
    """The process and its best time, stopping at the first run that is quick enough."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
        times.append(time.perf_counter() - began)
        if times[-1] < 3.0:
            break
    return done, min(times)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("train.py", ["--help"]),
        ("train.py", ["-h"]),
        ("train.py", ["--cfg", "job"]),
        ("train.py", ["experiment=mlm_base", "model=modern", "--cfg", "job"]),
        ("scripts/prepare_data.py", ["--help"]),
        ("scripts/fill_mask.py", ["--help"]),
        ("scripts/export.py", ["--help"]),
        ("scripts/benchmark.py", ["throughput", "--help"]),
    ],
    ids=" ".join,
)
def test_quick_without_the_heavy_libraries(script: str, arguments: list[str]) -> None:
    done, seconds = fastest([sys.executable, "-X", "importtime", script, *arguments])
    assert done.returncode == 0, done.stderr[-2000:]
    assert seconds < 3.0
    assert len(done.stdout.splitlines()) > 5
    imported = {
        line.rpartition("|")[2].strip().split(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "bertlab" in imported  # the list is there at all
    assert not imported & set(HEAVY)


def test_cfg_job_shows_the_resolved_values() -> None:
    command = [sys.executable, "train.py", "experiment=mlm_large", "optimizer.lr=3e-4", "--cfg", "job"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    shown = yaml.safe_load(done.stdout)
    assert (shown["model"]["hidden_size"], float(shown["optimizer"]["lr"])) == (1024, 3e-4)
    assert set(shown) >= {"seed", "model", "data", "tokenizer", "masking", "optimizer", "schedule", "trainer", "logger"}


@pytest.mark.parametrize("name", ["train", "prepare_data"])
def test_help_lists_every_option(name: str, command: Callable[..., Any]) -> None:
    outcome = command(name, "--help")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    for group in (path for path in CONFIGS.iterdir() if path.is_dir()):
        assert f"  {group.name}" in lines
        for option in group.glob("*.yaml"):
            described = [line for line in lines if re.match(rf"    {option.stem}\s+\S", line)]
            assert described, f"{group.name}={option.stem} is not described"
    for path, schema in SCHEMAS.items():
        prefix = "" if path == "run" else path.partition("/")[0] + "."
        groups = {path.name for path in CONFIGS.iterdir()} if path == "run" else set()
        for field in {field.name for field in dataclasses.fields(schema)} - groups:
            assert any(re.match(rf"  {prefix}{field}: \S", line) for line in lines), f"{prefix}{field} is not described"
    assert "train.py" in outcome.out if name == "train" else "prepare_data.py" in outcome.out


def test_help_of_the_other_commands_names_their_arguments() -> None:
    for script, words in (
        ("scripts/fill_mask.py", ("model", "text", "--top")),
        ("scripts/export.py", ("run_dir", "out")),
        ("scripts/benchmark.py", ("throughput",)),
    ):
        done = subprocess.run(
            [sys.executable, script, "--help"], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
        )
        assert all(word in done.stdout for word in words)
