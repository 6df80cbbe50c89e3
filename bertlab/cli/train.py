"""``python train.py``: pretrain an encoder."""

import sys

from bertlab.cli.app import CONFIGS, run_hydra_command
from bertlab.cli.help import TRAIN_EXAMPLES, help_text
from bertlab.training.config import RunConfig


def train(config: RunConfig, *, name: str, overrides: list[str], options: dict[str, str]) -> None:
    """Run ``config``."""
    from bertlab.cli.validate import check_device

    check_device(config.trainer.accelerator, config.trainer.precision)
    from bertlab.training.run import run

    run(config, name=name, overrides=overrides, options=options)


def main() -> None:
    """The command."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(help_text(CONFIGS, "train.py", "Pretrain a BERT encoder with masked-language modelling.", TRAIN_EXAMPLES))
        return
    sys.exit(run_hydra_command(train))
