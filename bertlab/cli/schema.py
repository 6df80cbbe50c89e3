"""Registers the dataclasses as the schemas of the config groups. Imports no torch."""

from hydra.core.config_store import ConfigStore

from bertlab.data.config import (
    BpeConfig,
    HfConfig,
    KjvConfig,
    MaskingConfig,
    PretrainedTokenizerConfig,
    TextConfig,
    UnigramConfig,
    WordPieceConfig,
)
from bertlab.models.config import BertConfig
from bertlab.optim.config import (
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    OneCycleConfig,
    OptimizerConfig,
    WsdConfig,
)
from bertlab.training.config import (
    CheckpointConfig,
    CsvConfig,
    LoggerConfig,
    RunConfig,
    TensorBoardConfig,
    TrainerConfig,
    WandbConfig,
)

SCHEMAS: dict[str, type] = {
    "run": RunConfig,
    "model/bert": BertConfig,
    "data/kjv": KjvConfig,
    "data/text": TextConfig,
    "data/hf": HfConfig,
    "tokenizer/wordpiece": WordPieceConfig,
    "tokenizer/bpe": BpeConfig,
    "tokenizer/unigram": UnigramConfig,
    "tokenizer/pretrained": PretrainedTokenizerConfig,
    "masking/masking": MaskingConfig,
    "optimizer/adamw": OptimizerConfig,
    "schedule/constant": ConstantConfig,
    "schedule/linear": LinearConfig,
    "schedule/cosine": CosineConfig,
    "schedule/wsd": WsdConfig,
    "schedule/one_cycle": OneCycleConfig,
    "trainer/trainer": TrainerConfig,
    "checkpoint/checkpoint": CheckpointConfig,
    "logger/none": LoggerConfig,
    "logger/csv": CsvConfig,
    "logger/tensorboard": TensorBoardConfig,
    "logger/wandb": WandbConfig,
}


def register_schemas() -> None:
    """Make the schemas known to Hydra under the group ``schema``."""
    store = ConfigStore.instance()
    for path, node in SCHEMAS.items():
        group, _, name = f"schema/{path}".rpartition("/")
        store.store(group=group, name=name, node=node)
