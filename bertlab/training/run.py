"""A pretraining run, from config to summary, in the order in which things are built."""

import dataclasses
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger

from bertlab.data.prepare import Prepared, prepare
from bertlab.data.pretraining import PretrainingData
from bertlab.data.tokenizer import Tokenizer
from bertlab.errors import Interrupted, RunFailure, UserError, raise_on_signals
from bertlab.hub import save_pretrained
from bertlab.models.bert import BertForMaskedLM
from bertlab.models.config import BertConfig
from bertlab.ops.random import derive_seed
from bertlab.tasks.pretraining import MaskedLMTask
from bertlab.training.budget import Budget
from bertlab.training.checkpoint import AtomicCheckpointIO
from bertlab.training.config import RunConfig
from bertlab.training.loggers import build_logger, finish_wandb
from bertlab.training.machine import keep_memory
from bertlab.training.recorder import BudgetCallback, MetricsRecorder, ProgressBar
from bertlab.training.run_dir import RunDir, check_free

log = logging.getLogger(__name__)
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it announces every flag that is left alone


@dataclass
class RunResult:
    """What a finished run leaves.

    Attributes:
        run_dir: the run folder.
        summary: the content of summary.json.
    """

    run_dir: Path
    summary: dict[str, Any]


def check_vocabulary(model: BertConfig, tokenizer: Tokenizer) -> None:
    """Refuse a model whose embedding is smaller than the tokenizer's vocabulary.

    Raises:
        UserError: when it is.
    """
    if model.vocab_size is not None and model.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size={model.vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size} entries: "
            "leave it out, or set it to that or more"
        )


def prepare_data(config: RunConfig) -> tuple[Prepared, PretrainingData]:
    """The tokenizer and the shards of a run, from the cache or made now, and the rows that it trains on.

    Raises:
        UserError: when the corpus or the tokenizer is wrong, does not fit the model, or gives no whole row.
    """
    prepared = prepare(
        config.data, config.tokenizer, check_tokenizer=lambda tokenizer: check_vocabulary(config.model, tokenizer)
    )
    rows = PretrainingData(
        config.data, config.masking, prepared.tokenizer, prepared.train, prepared.val, seed=config.seed
    )
    return prepared, rows


def plain(value: Any) -> Any:
    """A config as nested plain dicts and lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def run(config: RunConfig, *, name: str, overrides: list[str], options: dict[str, str] | None = None) -> RunResult:
    """Pretrain.

    Args:
        config: what to do.
        name: what to call the run, the first part of its id.
        overrides: the overrides of the command line, for run.json.
        options: the chosen option of every config group, which config.yaml and W&B show beside the values.

    Returns:
        The run folder and the final figures.

    Raises:
        UserError: when the input is wrong; when the data or the tokenizer is, no run folder is made.
        RunFailure: when the training diverged.
        Interrupted: on SIGINT or SIGTERM; the run folder says so.
    """
    logging.getLogger("bertlab").setLevel(logging.INFO)  # for train.log, also when no command set it up
    check_free(config.run_dir)
    prepared, data = prepare_data(config)
    model = dataclasses.replace(
        config.model,
        vocab_size=config.model.vocab_size or prepared.tokenizer.vocab_size,
        pad_token_id=prepared.tokenizer.pad_id,
    )
    config = dataclasses.replace(config, model=model)

    shown = {"options": options or {}} | plain(config)
    run_dir = RunDir(config.run_dir, name, shown, overrides)
    log_file = logging.FileHandler(run_dir.path / "train.log", encoding="utf-8")
    log_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(log_file)
    exit_code = 1
    try:
        with raise_on_signals():
            try:
                log.info("run folder: %s", run_dir.path)
                summary = fit(config, prepared, data, run_dir, shown)
                exit_code = 0
            except Interrupted as interrupted:
                exit_code = interrupted.exit_code
                log.info("interrupted by %s", interrupted)
                raise
            except UserError:
                exit_code = 2
                raise
            except RunFailure as failure:
                log.info("the run failed: %s", failure)
                raise
            except Exception:
                log.exception("the run failed")
                raise
            finally:
                run_dir.end(exit_code)  # first: W&B may take long to upload what is left
                finish_wandb(exit_code)
    finally:
        logging.getLogger().removeHandler(log_file)
        log_file.close()
    return RunResult(run_dir.path, summary)


def fit(
    config: RunConfig, prepared: Prepared, data: PretrainingData, run_dir: RunDir, shown: dict[str, Any]
) -> dict[str, Any]:
    """Build the model and the trainer, train, validate, export; returns the final figures."""
    trainer_config = config.trainer
    prepared.tokenizer.save_pretrained(
        run_dir.path / "tokenizer",
        token_types=config.model.type_vocab_size > 0,
        model_max_length=config.model.max_position_embeddings,
    )
    torch.manual_seed(derive_seed(config.seed, "weights"))
    model = BertForMaskedLM(config.model)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    keep_memory(num_parameters)
    log.info("model: %s parameters", f"{num_parameters:,}")

    budget = Budget(trainer_config.max_steps, trainer_config.max_seconds)
    if budget.max_steps is not None and budget.max_seconds is not None:
        log.info(
            "trainer.max_steps=%d is a cap; the learning rate follows trainer.max_time=%s (null: follow the steps)",
            budget.max_steps,
            trainer_config.max_time,
        )
    task = MaskedLMTask(
        model,
        config.optimizer,
        config.schedule,
        seed=config.seed,
        progress=budget.progress,
        fused=False if trainer_config.precision.startswith("16") else None,
    )
    logger = build_logger(config.logger, run_dir.path, run_dir.info["id"], shown)
    if isinstance(logger, WandbLogger):
        run_dir.update(wandb_id=logger.experiment.id)
    recorder = MetricsRecorder(
        run_dir.path / "metrics.jsonl", budget, trainer_config.log_every_n_steps, trainer_config.precision
    )
    callbacks: list[Callback] = [BudgetCallback(budget), recorder]  # in this order: the clock is read first
    if trainer_config.progress_bar:
        callbacks.append(ProgressBar(recorder, budget))
    if config.checkpoint.every_n_steps is not None:
        callbacks.append(
            ModelCheckpoint(
                dirpath=run_dir.path / "checkpoints",
                filename="step-{step:08d}",
                auto_insert_metric_name=False,
                monitor=None,
                every_n_train_steps=config.checkpoint.every_n_steps,
                save_on_train_epoch_end=False,
            )
        )
    accumulation = config.data.global_batch_size // config.data.micro_batch_size
    val_loader = data.val_loader()
    val_interval = None
    if val_loader is not None and trainer_config.val_every_n_steps is not None:
        val_interval = trainer_config.val_every_n_steps * accumulation  # Lightning counts micro-batches
    # Advice that does not apply: batches are cheap to build, and metrics do not go through Lightning.
    for message in (
        ".*does not have many workers.*",
        ".*LeafSpec.*",
        ".*logging interval.*",
        ".*have no `val_dataloader`.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    trainer = lightning.Trainer(
        accelerator=trainer_config.accelerator,
        devices=1,
        precision=trainer_config.precision,  # type: ignore[arg-type]
        max_steps=-1 if trainer_config.max_steps is None else trainer_config.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=accumulation,
        val_check_interval=val_interval,
        check_val_every_n_epoch=None,
        limit_val_batches=0 if val_interval is None else None,
        num_sanity_val_steps=0,
        logger=logger or False,
        plugins=[AtomicCheckpointIO()],
        callbacks=callbacks,
        use_distributed_sampler=False,
        enable_checkpointing=config.checkpoint.every_n_steps is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=run_dir.path,
    )
    try:
        trainer.fit(task, data.train_loader(max_steps=trainer_config.max_steps), val_loader)
        if val_loader is not None and "val/loss" not in recorder.pending:
            trainer.limit_val_batches = 1.0
            trainer.validate(task, val_loader, verbose=False)
    finally:
        recorder.close(trainer)
    trainer.save_checkpoint(run_dir.path / "checkpoints" / "last.ckpt")
    save_pretrained(model, run_dir.path / "model", prepared.tokenizer)
    summary = {
        "steps": trainer.global_step,
        "tokens": recorder.tokens,
        "seconds": round(budget.elapsed, 3),
        "parameters": num_parameters,
    } | {name: value for name, value in recorder.last.items() if "/" in name}
    run_dir.write_summary(summary)
    print_summary(run_dir.path, summary)
    return summary


def print_summary(run_dir: Path, summary: dict[str, Any]) -> None:
    """Say what came out and where it lies."""
    log.info("%s steps, %s tokens, %.0f s", f"{summary['steps']:,}", f"{summary['tokens']:,}", summary["seconds"])
    if "val/loss" in summary:
        log.info(
            "validation: loss %.4f nats, perplexity %.2f, masked accuracy %.4f",
            summary["val/loss"],
            summary["val/perplexity"],
            summary["val/masked_accuracy"],
        )
    log.info("model: %s", run_dir / "model")
