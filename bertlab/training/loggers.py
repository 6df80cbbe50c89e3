"""The loggers beside metrics.jsonl."""

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from bertlab.errors import UserError
from bertlab.training.config import CsvConfig, LoggerConfig, TensorBoardConfig, WandbConfig

log = logging.getLogger(__name__)


def build_logger(logger: LoggerConfig, run_dir: Path, run_id: str, config: dict[str, Any]) -> Logger | None:
    """Make the logger that the config asks for, writing below the run folder.

    Args:
        logger: its config; the base class means none.
        run_dir: the run folder.
        run_id: id of the run, also W&B's.
        config: the resolved configuration as nested plain dicts.

    Returns:
        The logger, or None.
    """
    if isinstance(logger, CsvConfig):
        # It warns that it will delete what an old run left in the folder, which is new.
        warnings.filterwarnings("ignore", message="Experiment logs directory")
        return CSVLogger(save_dir=run_dir, name="", version="", flush_logs_every_n_steps=1)
    if isinstance(logger, TensorBoardConfig):
        return TensorBoardLogger(save_dir=run_dir, name="", version="tensorboard")
    if isinstance(logger, WandbConfig):
        return build_wandb(logger, run_dir, run_id, config)
    return None


def build_wandb(logger: WandbConfig, run_dir: Path, run_id: str, config: dict[str, Any]) -> WandbLogger:
    """Start a W&B run: online when somebody is logged in, else offline with a line that says so.

    Raises:
        UserError: when it does not start: a wrong key or mode, no network.
    """
    import wandb

    try:
        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        # Not left to WandbLogger, which would reuse a run that is open in this process.
        run = wandb.init(
            project=logger.project,
            entity=logger.entity,
            name=run_id,
            id=run_id,
            group=logger.group,
            job_type=logger.job_type,
            tags=logger.tags,
            dir=run_dir,
            config=config,
            mode=mode,  # type: ignore[arg-type]  # checked by wandb
            reinit="finish_previous",
            settings=wandb.Settings(silent=mode != "online"),  # offline, our one line says it all
        )
    except (wandb.Error, ValueError, OSError) as error:
        raise UserError(
            f"W&B does not start: {' '.join(str(error).split())}: mend that (WANDB_API_KEY, WANDB_MODE, logger.*), or "
            "go on without it: WANDB_MODE=offline, or logger=csv"
        ) from error
    for name in ("step", "tokens", "seconds"):
        run.define_metric(name)
    run.define_metric("*", step_metric="step")
    if mode == "offline":
        folder = Path(run.dir).parent
        log.info(
            "W&B is offline (nobody is logged in, or WANDB_MODE says so); upload later with: wandb sync %s", folder
        )
    return WandbLogger(save_dir=run_dir, experiment=run)


def finish_wandb(exit_code: int) -> None:
    """End the process's W&B run, if there is one, with the run's exit code."""
    if "wandb" not in sys.modules or sys.modules["wandb"].run is None:
        return
    wandb = sys.modules["wandb"]
    folder = Path(wandb.run.dir).parent
    try:
        wandb.finish(exit_code=exit_code)
    except Exception as error:  # the run itself is not touched by what the upload came upon
        log.warning("W&B did not end properly (%s); upload again with: wandb sync %s", error, folder)
