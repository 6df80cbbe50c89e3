"""``python scripts/prepare_data.py``: tokenise ahead of time."""

import sys

from bertlab.cli.app import CONFIGS, run_hydra_command
from bertlab.cli.help import PREPARE_EXAMPLES, help_text
from bertlab.training.config import RunConfig


def prepare_data(config: RunConfig, *, name: str, overrides: list[str], options: dict[str, str]) -> None:
    """Train the tokenizer and write the shards that a run of ``config`` would use; nothing is done twice."""
    from bertlab.training.run import prepare_data as prepare

    prepared, _ = prepare(config)
    print(f"vocabulary: {prepared.tokenizer.vocab_size:,} entries")
    for split, shards in (("training", prepared.train), ("validation", prepared.val)):
        if shards is not None:
            print(f"{split}: {shards.num_documents:,} documents, {shards.num_tokens:,} tokens in {shards.folder}")


def main() -> None:
    """The command."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        command = "Train the tokenizer and tokenise the corpus of an experiment, so that train.py starts at once."
        print(help_text(CONFIGS, "scripts/prepare_data.py", command, PREPARE_EXAMPLES))
        return
    sys.exit(run_hydra_command(prepare_data))
