"""Calling a command in this process, and a small corpus for it."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bertlab.cli import export, fill_mask, prepare_data, train

MAINS = {"train": train.main, "prepare_data": prepare_data.main, "fill_mask": fill_mask.main, "export": export.main}


class Outcome(NamedTuple):
    """What a command left: exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command as its script does: the arguments in sys.argv, the exit code through sys.exit."""

    def call(name: str, *arguments: str) -> Outcome:
        script = "train.py" if name == "train" else f"scripts/{name}.py"
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        capsys.readouterr()
        code: object = 0
        try:
            MAINS[name]()
        except SystemExit as stop:
            code = stop.code
        assert isinstance(code, int)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.txt and val.txt, a document a line."""
    folder = tmp_path_factory.mktemp("corpus")
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "one", "dog", "ran", "to", "see", "what", "bird", "sang"]
    for name, lines in (("train", 300), ("val", 60)):
        numbers = ([line * 7 + place * place for place in range(12)] for line in range(lines))
        text = (" ".join(words[number % len(words)] for number in row) for row in numbers)
        (folder / f"{name}.txt").write_text("".join(f"{line} .\n" for line in text), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def text_overrides(corpus: Path) -> list[str]:
    """Overrides that point an experiment at the corpus."""
    files = [f'data.{split}_files=["{corpus / split}.txt"]' for split in ("train", "val")]
    return ["data=text", *files, "data.prepare_workers=1", "tokenizer=wordpiece", "tokenizer.vocab_size=100"]


@pytest.fixture(scope="session")
def tiny_overrides(text_overrides: list[str]) -> list[str]:
    """Overrides that make any experiment small: two steps on the corpus."""
    return [
        *text_overrides,
        "model.hidden_size=16",
        "model.num_hidden_layers=2",
        "model.num_attention_heads=2",
        "model.intermediate_size=32",
        "data.sequence_length=16",
        "data.global_batch_size=4",
        "data.micro_batch_size=2",
        "data.num_workers=0",
        "trainer.max_time=null",
        "trainer.max_steps=2",
        "trainer.accelerator=cpu",
        "trainer.progress_bar=false",
        "logger=none",
    ]


@pytest.fixture(autouse=True)
def usual_log_level() -> Iterator[None]:
    """A command that is run in the test's process sets the level; the next test must not see it."""
    package = logging.getLogger("bertlab")
    before = package.level
    yield
    package.setLevel(before)
