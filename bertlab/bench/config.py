"""What one side of a throughput measurement is told. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One training to be measured, the same for both sides.

    Attributes:
        experiment: the config that gives the shape, such as ``mlm_tiny``.
        dropout: both dropout probabilities.
        batch_size: rows in a step.
        sequence_length: tokens in a row.
        vocab_size: entries of the token embedding and of the logits.
        warmup_steps: optimizer steps before the measurement.
        steps: optimizer steps that are measured.
    """

    experiment: str
    dropout: float
    batch_size: int
    sequence_length: int
    vocab_size: int
    warmup_steps: int
    steps: int

    def overrides(self, run_dir: str) -> list[str]:
        """The command line of ``train.py`` that trains this."""
        return [
            f"experiment={self.experiment}",
            "model=bert",
            "data=kjv",
            "tokenizer=wordpiece",
            f"model.vocab_size={self.vocab_size}",
            f"model.hidden_dropout_prob={self.dropout}",
            f"model.attention_probs_dropout_prob={self.dropout}",
            f"data.sequence_length={self.sequence_length}",
            f"data.global_batch_size={self.batch_size}",
            f"data.micro_batch_size={self.batch_size}",
            "data.num_workers=0",
            "optimizer.lr=2e-3",
            "trainer.max_time=null",
            f"trainer.max_steps={self.warmup_steps + self.steps}",
            f"trainer.log_every_n_steps={self.warmup_steps}",
            "trainer.val_every_n_steps=null",
            "trainer.progress_bar=false",
            "checkpoint.every_n_steps=null",
            "logger=none",
            f"run_dir={run_dir}",
        ]
