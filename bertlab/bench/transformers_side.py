"""The other side of the throughput benchmark: the same training with transformers' Trainer.

Run as a process of its own; reads a workload and the path of a config.yaml from the command line, and prints JSON.
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch
import transformers
import yaml
from torch.utils.data import Dataset

from bertlab.bench.config import Workload
from bertlab.data.config import KjvConfig, MaskingConfig, WordPieceConfig
from bertlab.data.prepare import prepare
from bertlab.data.pretraining import PretrainingData


class Rows(Dataset[dict[str, list[int]]]):
    """The rows that ``train.py`` would train on, before masking."""

    def __init__(self, data: PretrainingData) -> None:
        """Show the training rows of ``data``."""
        self.rows = data.train_rows

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        """One row, as a tokenizer of transformers would give it."""
        ids = self.rows.read(row)[0].tolist()
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}


class Stopwatch(transformers.TrainerCallback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        """Start without a reading."""
        self.times: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Take the time."""
        self.times.append(time.perf_counter())


def measure(workload: Workload, model_config: dict[str, Any]) -> dict[str, float]:
    """Train and measure.

    Args:
        workload: what to train.
        model_config: the ``model`` part of our run's config.yaml, whose shape is used.

    Returns:
        ``tokens`` (real ones, of the measured steps) and ``seconds``.
    """
    data_config = KjvConfig(
        sequence_length=workload.sequence_length,
        global_batch_size=workload.batch_size,
        micro_batch_size=workload.batch_size,
    )
    prepared = prepare(data_config, WordPieceConfig())
    data = PretrainingData(data_config, MaskingConfig(), prepared.tokenizer, prepared.train, prepared.val, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        prepared.tokenizer.save_pretrained(folder, token_types=True, model_max_length=workload.sequence_length)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        config = transformers.BertConfig(
            **{name: model_config[name] for name in shape},
            hidden_dropout_prob=workload.dropout,
            attention_probs_dropout_prob=workload.dropout,
        )
        stopwatch = Stopwatch()
        trainer = transformers.Trainer(
            model=transformers.BertForMaskedLM(config),
            args=transformers.TrainingArguments(
                output_dir=folder,
                max_steps=workload.warmup_steps + workload.steps,
                per_device_train_batch_size=workload.batch_size,
                learning_rate=2e-3,
                weight_decay=0.01,
                report_to="none",
                logging_strategy="no",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Rows(data),
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
            callbacks=[stopwatch],
        )
        trainer.train()
    seconds = stopwatch.times[-1] - stopwatch.times[workload.warmup_steps - 1]
    # Joined rows are full but for the last one of the corpus, which a few dozen steps are most unlikely to meet.
    return {"tokens": workload.steps * workload.batch_size * workload.sequence_length, "seconds": seconds}


if __name__ == "__main__":
    transformers.set_seed(0)
    torch.manual_seed(0)
    with open(sys.argv[2], encoding="utf-8") as file:
        print(json.dumps(measure(Workload(**json.loads(sys.argv[1])), yaml.safe_load(file)["model"])))
