"""RunConfig: everything that defines a run, as plain dataclasses. Imports no torch."""

import re
from dataclasses import dataclass, field

from bertlab.data.config import DataConfig, MaskingConfig, TokenizerConfig
from bertlab.errors import UserError, check
from bertlab.models.config import BertConfig
from bertlab.optim.config import OptimizerConfig, ScheduleConfig

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true")
ACCELERATORS = ("auto", "cpu", "gpu", "mps")


def parse_max_time(text: str) -> float:
    """Seconds of a ``DD:HH:MM:SS`` duration.

    Raises:
        UserError: for anything else. YAML reads unquoted digits with colons as one integer, which is refused too.
    """
    if not re.fullmatch(r"\d+:\d\d:\d\d:\d\d", text):
        raise UserError(
            f"trainer.max_time={text} is not a duration of the form DD:HH:MM:SS, such as 00:00:06:00 for six minutes "
            '(in a YAML file, between quotes: "00:00:06:00")'
        )
    days, hours, minutes, seconds = map(int, text.split(":"))
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@dataclass
class TrainerConfig:
    """Budget, precision and rhythm of the training loop.

    Attributes:
        max_steps: optimizer steps; null: no limit but the clock's.
        max_time: wall-clock budget DD:HH:MM:SS from the first step, validation included. When it is set the schedule
            follows the clock, and max_steps is only a cap.
        accelerator: where to train: auto, cpu, gpu or mps.
        precision: Lightning's flag: 32-true, 64-true, bf16-mixed, 16-mixed, bf16-true or 16-true.
        log_every_n_steps: optimizer steps between two logged steps.
        val_every_n_steps: optimizer steps between two validations (null: only at the end).
        progress_bar: whether to show one.
    """

    max_steps: int | None = None
    max_time: str | None = None
    accelerator: str = "auto"
    precision: str = "32-true"
    log_every_n_steps: int = 20
    val_every_n_steps: int | None = 1000
    progress_bar: bool = True

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: with all problems in one message.
        """
        problems = []
        if self.max_steps is not None and self.max_steps < 1:
            problems.append(f"trainer.max_steps={self.max_steps} must be at least 1 (or null)")
        if self.max_time is not None:
            try:
                if parse_max_time(self.max_time) <= 0:
                    problems.append(f"trainer.max_time={self.max_time} must be longer than 0 seconds")
            except UserError as error:
                problems.append(str(error))
        if self.max_steps is None and self.max_time is None:
            problems.append("no budget: set trainer.max_steps=10000 or trainer.max_time=00:00:06:00 (or both)")
        if self.accelerator not in ACCELERATORS:
            problems.append(f"trainer.accelerator={self.accelerator} is not one of {', '.join(ACCELERATORS)}")
        if self.precision not in PRECISIONS:
            problems.append(f"trainer.precision={self.precision} is not one of {', '.join(PRECISIONS)}")
        if self.log_every_n_steps < 1:
            problems.append(f"trainer.log_every_n_steps={self.log_every_n_steps} must be at least 1")
        if self.val_every_n_steps is not None and self.val_every_n_steps < 1:
            problems.append(f"trainer.val_every_n_steps={self.val_every_n_steps} must be at least 1 (or null)")
        check(problems)

    @property
    def max_seconds(self) -> float | None:
        """The wall-clock budget in seconds; None without one."""
        return None if self.max_time is None else parse_max_time(self.max_time)


@dataclass
class CheckpointConfig:
    """When to save the training state.

    Attributes:
        every_n_steps: optimizer steps between two checkpoints (null: only one, at the end). The latest is kept.
    """

    every_n_steps: int | None = 1000

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: when the interval is below 1.
        """
        if self.every_n_steps is not None and self.every_n_steps < 1:
            raise UserError(f"checkpoint.every_n_steps={self.every_n_steps} must be at least 1 (or null)")


@dataclass
class LoggerConfig:
    """Where metrics go beside metrics.jsonl: nowhere (``logger=none``)."""


@dataclass
class CsvConfig(LoggerConfig):
    """A metrics.csv in the run folder."""


@dataclass
class TensorBoardConfig(LoggerConfig):
    """TensorBoard event files in the run folder."""


@dataclass
class WandbConfig(LoggerConfig):
    """Weights & Biases; offline when nobody is logged in.

    Attributes:
        project: name of the project.
        entity: user or team (null: the default one of the login).
        group: runs that belong together.
        job_type: kind of the run.
        tags: labels.
    """

    project: str = "bertlab"
    entity: str | None = None
    group: str | None = None
    job_type: str | None = "pretraining"
    tags: list[str] = field(default_factory=list)


@dataclass
class RunConfig:
    """Everything that defines a pretraining run.

    Attributes:
        seed: of weights, shuffles, masks and dropout.
        run_dir: the run folder (null: a fresh one under runs/).
        model: shape and options of the encoder.
        data: the corpus and the batches.
        tokenizer: how text becomes ids.
        masking: what is predicted.
        optimizer: AdamW's settings.
        schedule: course of the learning rate.
        trainer: budget, precision and rhythm.
        checkpoint: when to save.
        logger: where metrics go.
    """

    seed: int = 0
    run_dir: str | None = None
    model: BertConfig = field(default_factory=BertConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=lambda: TrainerConfig(max_steps=1))
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
