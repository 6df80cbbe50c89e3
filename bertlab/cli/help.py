"""``--help``: generated from the config files and dataclasses, so that it cannot go stale. Imports no torch."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from bertlab.cli.schema import SCHEMAS
from bertlab.training.config import RunConfig

USAGE = """\
{command}

usage: python {script} [group=option ...] [field=value ...]

An experiment sets everything; options and fields on the command line change it:

{examples}

Show the resulting configuration without running it:  --cfg job
Several runs, one after the other:                     -m seed=0,1,2  or  -m model.norm=post,pre

Groups and their options (the file is configs/GROUP/OPTION.yaml):
{groups}
Fields:
{fields}
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


def documented_fields(schema: type) -> dict[str, str]:
    """What the docstring of a config class, and of those that it extends, says of each field."""
    found: dict[str, str] = {}
    for cls in reversed(schema.__mro__[:-1]):
        section = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
        for name, text in re.findall(r"^    (\w+): ((?:.+\n?)(?:^     +.+\n?)*)", section, re.MULTILINE):
            found[name] = " ".join(text.replace("``", "").split())
    return found


def describe_fields(groups: list[str]) -> Iterator[str]:
    """A line for each field; those that only some options of a group have follow the group's, under their names."""
    top = documented_fields(SCHEMAS["run"])
    for name in (field.name for field in dataclasses.fields(RunConfig) if field.name not in groups):
        yield f"{name}: {top[name]}"
    for group in groups:
        schemas = {path.partition("/")[2]: schema for path, schema in SCHEMAS.items() if path.startswith(f"{group}/")}
        documented = {option: documented_fields(schema) for option, schema in schemas.items()}
        for name in dict.fromkeys(name for fields in documented.values() for name in fields):
            owners = [option for option, fields in documented.items() if name in fields]
            only = "" if len(owners) == len(schemas) else f" [{group}={', '.join(owners)}]"
            yield f"{group}.{name}: {documented[owners[0]][name]}{only}"


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
    names = [group.name for group in groups if group.name != "experiment"]
    return USAGE.format(
        command=command,
        script=script,
        examples=examples,
        groups="\n".join(lines) + "\n",
        fields="\n".join(
            textwrap.fill(line, 118, initial_indent="  ", subsequent_indent=" " * 6) for line in describe_fields(names)
        )
        + "\n",
    )
