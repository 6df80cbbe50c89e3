"""``python scripts/export.py RUN_DIR OUT``: the transformers format."""

import argparse
import sys
from pathlib import Path

from bertlab.cli.app import run_command
from bertlab.errors import user_path


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Export a run to the transformers format, with its tokenizer.")
    parser.add_argument("run_dir", type=Path, help="the run folder")
    parser.add_argument("out", type=Path, help="the folder to write; new or empty")
    arguments = parser.parse_args()

    def command() -> None:
        from bertlab.training.export import export_run

        out = user_path(arguments.out, "OUT")
        layout = export_run(user_path(arguments.run_dir, "RUN_DIR"), out)
        opener = "bertlab.load_pretrained" if layout is None else "AutoModelForMaskedLM.from_pretrained"
        print(f"exported to {out}: {opener}({str(out)!r}) opens it")

    sys.exit(run_command(command))
