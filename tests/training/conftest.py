"""A small corpus, and configs composed as the command line composes them."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from bertlab.cli.app import CONFIGS
from bertlab.cli.schema import register_schemas
from bertlab.cli.validate import to_run_config
from bertlab.training.config import RunConfig

TINY = [
    "model.hidden_size=16",
    "model.num_hidden_layers=1",
    "model.num_attention_heads=2",
    "model.intermediate_size=32",
    "model.hidden_dropout_prob=0",
    "model.attention_probs_dropout_prob=0",
    "data=text",
    "data.document=line",
    "data.packing=none",
    "data.sequence_length=32",
    "data.global_batch_size=8",
    "data.micro_batch_size=4",
    "data.val_batch_size=4",
    "data.prepare_workers=1",
    "tokenizer=wordpiece",
    "tokenizer.vocab_size=200",
    "optimizer.lr=1e-2",
    "trainer.accelerator=cpu",
    "trainer.max_steps=6",
    "trainer.log_every_n_steps=2",
    "trainer.val_every_n_steps=3",
    "trainer.progress_bar=false",
    "logger=none",
]


def write_text(path: Path, lines: int, seed: int) -> None:
    """Lines of 2 to 40 words from a small vocabulary: rows of unequal length."""
    generator = np.random.default_rng(seed)
    words = [a + b for a in ("ba", "de", "fi", "go", "lu", "ma") for b in ("n", "rd", "st", "lo", "mi")]
    text = (" ".join(generator.choice(words, generator.integers(2, 40))) for _ in range(lines))
    path.write_text("".join(f"{line} .\n" for line in text), encoding="utf-8")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.txt and val.txt."""
    folder = tmp_path_factory.mktemp("corpus")
    write_text(folder / "train.txt", 120, seed=1)
    write_text(folder / "val.txt", 30, seed=2)
    return folder


@pytest.fixture(scope="session")
def tiny_overrides(corpus: Path) -> list[str]:
    """The overrides of a run that takes a second."""
    files = {f"{split}_files": str(corpus / f"{split}.txt") for split in ("train", "val")}
    return [*TINY, *(f'data.{name}=["{path}"]' for name, path in files.items())]


@pytest.fixture(scope="session")
def tiny_config(tiny_overrides: list[str]) -> Callable[..., RunConfig]:
    """Composes the config of a small run, with further overrides."""

    def compose_config(run_dir: Path, *overrides: str) -> RunConfig:
        register_schemas()
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = compose("train", [*tiny_overrides, f'run_dir="{os.fspath(run_dir)}"', *overrides])
        return to_run_config(composed)

    return compose_config
