"""``--help``: generated from the config files and dataclasses, so that it cannot go stale. Imports no torch."""

from pathlib import Path

USAGE = """\
{command}

usage: python {script} [group=option ...] [field=value ...]

An experiment sets everything; options and fields on the command line change it:

{examples}

Show the resulting configuration without running it:  --cfg job
Every field of an option with its default:             --cfg job --package model

Groups and their options (the file is configs/GROUP/OPTION.yaml):
{groups}
Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 SIGINT, 143 SIGTERM."""

TRAIN_EXAMPLES = """\
  python train.py experiment=demo
  python train.py experiment=mlm_tiny trainer.max_time=00:00:06:00 seed=1
  python train.py experiment=mlm_base model=modern trainer.precision=bf16-mixed
  python train.py experiment=mlm_base data=text data.train_files='[corpus/**/*.txt]' data.val_files='[held_out.txt]'
  python train.py experiment=mlm_tiny logger=csv run_dir=runs/first"""

PREPARE_EXAMPLES = """\
  python scripts/prepare_data.py experiment=mlm_base
  python scripts/prepare_data.py experiment=mlm_base data=text data.train_files='[corpus/**/*.txt]'"""


def describe(path: Path) -> str:
    """The first comment of a config file that is not a Hydra directive."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").strip()
    return ""


def help_text(configs: Path, script: str, command: str, examples: str) -> str:
    """The whole help.

    Args:
        configs: the folder of the config groups.
        script: how the command is called.
        command: what it does, one line.
        examples: command lines.
    """
    lines = []
    groups = sorted(
        (group for group in configs.iterdir() if group.is_dir()), key=lambda g: (g.name != "experiment", g.name)
    )
    for group in groups:
        lines.append(f"\n  {group.name}")
        for option in sorted(group.glob("*.yaml")):
            lines.append(f"    {option.stem:<14}{describe(option)}")
    return USAGE.format(command=command, script=script, examples=examples, groups="\n".join(lines) + "\n")
