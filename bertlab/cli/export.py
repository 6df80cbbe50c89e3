"""``python scripts/export.py RUN_DIR OUT``: the transformers format."""

import argparse
import sys
from pathlib import Path

from bertlab.cli.app import run_command


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Export a run to the transformers format, with its tokenizer.")
    parser.add_argument("run_dir", type=Path, help="the run folder")
    parser.add_argument("out", type=Path, help="the folder to write; new or empty")
    arguments = parser.parse_args()

    def command() -> None:
        from bertlab.training.export import export_run

        export_run(arguments.run_dir.expanduser(), arguments.out.expanduser())
        print(f"exported to {arguments.out}: AutoModelForMaskedLM.from_pretrained({str(arguments.out)!r}) loads it")

    sys.exit(run_command(command))
