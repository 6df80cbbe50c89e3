"""What every command has in common: exit codes, one-line messages, Hydra. Imports no torch."""

import logging
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from bertlab.errors import Interrupted, RunFailure, UserError, raise_on_signals

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
QUOTING = (
    "quote what has spaces, brackets, =, ~ or letters beyond ASCII twice, for the shell and for Hydra: "
    """data.train_files='["my text.txt"]'"""
)


def run_command(command: Callable[[], None]) -> int:
    """Run a command and turn what escapes into an exit code.

    Args:
        command: what to run.

    Returns:
        0 done, 1 it failed, 2 the user's input was wrong, 130 SIGINT, 143 SIGTERM (a handler is installed meanwhile).
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it announces every retry
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for chatty in ("httpx", "fsspec", "datasets", "filelock"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        with raise_on_signals():
            command()
    except UserError as error:
        print_error(str(error))
        return 2
    except Interrupted as interrupted:
        print_error(f"interrupted by {interrupted}")
        return interrupted.exit_code
    except RunFailure as failure:
        print_error(str(failure))
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def print_error(message: str) -> None:
    """Print ``error:`` and the message, one line for each problem."""
    for line in message.splitlines():
        print(f"error: {line}" if line.strip() else line, file=sys.stderr)


def run_hydra_command(task: Callable[..., None]) -> int:
    """Compose the config from the command line and run ``task(config, name=..., overrides=..., options=...)``.

    Args:
        task: takes the RunConfig, the name of the experiment, the overrides of the command line and the chosen option
            of every group.

    Returns:
        The exit code, as ``run_command``.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from bertlab.cli.schema import register_schemas
    from bertlab.cli.validate import to_run_config

    register_schemas()
    for flag in {"-m", "--multirun"} & set(sys.argv[1:]):  # Hydra takes no override after it unless it stands first
        sys.argv.remove(flag)
        sys.argv.insert(1, flag)
    # Without this Hydra prints the errors itself, with tracebacks, and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"

    @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
    def application(config: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        typed = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)  # an interpolation stays as it is
        assert isinstance(typed, list)
        overrides = [str(override) for override in typed]
        choices = hydra_config.runtime.choices
        options = {group: str(option) for group, option in choices.items() if option and not group.startswith("hydra/")}
        # A list of experiments is no option of the group to Hydra, but it is what the user chose.
        chosen = [value for key, _, value in (override.partition("=") for override in overrides) if key == "experiment"]
        experiments = re.findall(r"\w+", chosen[-1] if chosen else "")
        if experiments and experiments != ["null"]:
            options["experiment"] = "+".join(experiments)

        def checked_task() -> None:
            try:
                run_config = to_run_config(config, options)
            except OmegaConfBaseException as error:  # an interpolation that leads nowhere
                raise UserError(hydra_message(error)) from error
            task(run_config, name=options.get("experiment", "run"), overrides=overrides, options=options)

        # SystemExit passes through Hydra without the line that it prints about failed jobs.
        code = run_command(checked_task)
        if code:
            sys.exit(code)

    def compose_and_run() -> None:
        # Hydra writes a multirun.yaml that says less than our run folders do: it goes with the temporary folder.
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["BERTLAB_SWEEP_DIR"] = scratch
            try:
                application()
            except (HydraException, OmegaConfBaseException, ValueError) as error:  # model=3 is a ValueError
                raise UserError(hydra_message(error)) from error

    return run_command(compose_and_run)


def options_of(group: str) -> list[str]:
    """The options of a config group; empty when there is no such group."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def hydra_message(error: BaseException) -> str:
    """One of Hydra's errors in our words, or in its own on one line."""
    from hydra.errors import OverrideParseException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

    if isinstance(error, OverrideParseException):
        reason = re.sub(r"^\w+Exception: .*", "this cannot be read", str(error).splitlines()[0])
        return f"{error.override}: {reason}; {QUOTING}"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and cause.full_key:
        *parents, key = str(cause.full_key).split(".")
        known = sorted(getattr(cause.object_type, "__dataclass_fields__", {}))
        where = ".".join(parents) or "the configuration"
        return f"{cause.full_key}: there is no {key!r} in {where}" + (f"; it has {', '.join(known)}" if known else "")
    if isinstance(cause, ValidationError) and cause.full_key and "is not a ListConfig" in str(cause):
        return f"{cause.full_key} takes a list, also for one entry: {cause.full_key}='[a.txt]'; {QUOTING}"
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return f"{cause.full_key}: {str(cause).splitlines()[0]}"
    if missing := re.search(r"Could not load '(\w+)/(\w+)'", str(error)):
        group, option = missing.groups()
        return f"{group}={option}: there is no such option; available options: {', '.join(options_of(group))}"
    if "override must be a string or a list" in str(error):
        for group, _, option in (argument.partition("=") for argument in sys.argv[1:]):
            options = options_of(group)
            if options and re.fullmatch(r"[\d.]+|null|true|false|", option):
                return f"{group}={option}: this must be a string, the name of an option: {', '.join(options)}"
    text = str(error).split("Config search path:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[1].startswith("Available options"):
        return f"{lines[0]}; {lines[1].rstrip(':').lower()}: {', '.join(lines[2:])}"
    return " ".join(lines)
