"""Every combination of experiment, model, tokenizer and data composes into a valid run."""

import itertools
from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_dir

from bertlab.cli.app import CONFIGS
from bertlab.cli.schema import SCHEMAS, register_schemas
from bertlab.cli.validate import to_run_config
from bertlab.data.config import BpeConfig, HfConfig, KjvConfig, PretrainedTokenizerConfig, TextConfig, WordPieceConfig
from bertlab.models.config import BertConfig
from bertlab.training.config import RunConfig

# What an option leaves to the user.
REQUIRED = {
    "data=text": ["data.train_files=[a.txt]"],
    "data=hf": ["data.name=someone/something"],
    "tokenizer=pretrained": ["tokenizer.path=vocab.txt"],
}


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def run_config(*overrides: str) -> RunConfig:
    required = [field for choice in overrides for field in REQUIRED.get(choice, [])]
    return to_run_config(compose("train", [*overrides, *required]))


@pytest.fixture(scope="module", autouse=True)
def hydra_reads_the_configs() -> Iterator[None]:
    register_schemas()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_with_every_model_tokenizer_and_data(experiment: str) -> None:
    shape = run_config(f"experiment={experiment}").model
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    for model, tokenizer, data in itertools.product(options("model"), options("tokenizer"), options("data")):
        choices = [f"experiment={experiment}", f"model={model}", f"tokenizer={tokenizer}", f"data={data}"]
        config = run_config(*choices)
        # The command line wins over the experiment, and the experiment's sizes stay.
        assert (config.model.norm, config.model.position) == {"bert": ("post", "learned"), "modern": ("pre", "rope")}[
            model
        ]
        assert [getattr(config.model, size) for size in sizes] == [getattr(shape, size) for size in sizes]
        assert type(config.data) is {"kjv": KjvConfig, "text": TextConfig}.get(data, HfConfig)
        if tokenizer == "pretrained":
            assert isinstance(config.tokenizer, PretrainedTokenizerConfig)
        else:
            vocab_size = {"wordpiece_8k": 8192}.get(tokenizer, 30522)
            assert config.tokenizer.vocab_size == vocab_size  # type: ignore[attr-defined]


@pytest.mark.parametrize("group", ["schedule", "logger", "optimizer", "masking", "trainer", "checkpoint"])
def test_every_other_option(group: str) -> None:
    for option in options(group):
        config = run_config("experiment=demo", f"{group}={option}")
        schema = next((SCHEMAS[name] for name in (f"{group}/{option}", f"{group}/{group}") if name in SCHEMAS), None)
        assert type(getattr(config, group)) is schema


def test_every_schema_has_an_option_and_every_option_a_schema() -> None:
    used = set()
    for path in CONFIGS.glob("*/*.yaml"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip().startswith("- /schema/"):
                used.add(line.strip().removeprefix("- /schema/").removesuffix("@_here_"))
    assert used == set(SCHEMAS) - {"run"}


def test_published_shapes() -> None:
    shapes = {
        "demo": (2, 128, 2),
        "mlm_tiny": (2, 128, 2),
        "mlm_mini": (4, 256, 4),
        "mlm_small": (4, 512, 8),
        "mlm_medium": (8, 512, 8),
        "mlm_base": (12, 768, 12),
        "mlm_large": (24, 1024, 16),
    }
    assert sorted(shapes) == options("experiment")
    for experiment, shape in shapes.items():
        model = run_config(f"experiment={experiment}").model
        assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == shape
        assert model.intermediate_size == 4 * model.hidden_size


def test_small_experiments_have_the_recipe_of_the_embedded_corpus() -> None:
    for experiment in ("demo", "mlm_tiny", "mlm_mini"):
        config = run_config(f"experiment={experiment}")
        assert isinstance(config.data, KjvConfig)
        assert config.data.val_books == ["Ruth", "Jonah", "Mark", "James"]
        assert isinstance(config.tokenizer, WordPieceConfig)
        assert (config.model.hidden_dropout_prob, config.model.attention_probs_dropout_prob) == (0.0, 0.0)
        assert (config.optimizer.lr, config.data.global_batch_size, config.data.sequence_length) == (2e-3, 16, 128)
    assert run_config("experiment=demo").model.norm == "pre"
    assert run_config("experiment=mlm_tiny").model.norm == "post"


def test_large_experiments_have_the_published_recipe() -> None:
    for experiment in ("mlm_base", "mlm_large"):
        config = run_config(f"experiment={experiment}")
        assert isinstance(config.data, HfConfig)
        assert config.data.name == "wikimedia/wikipedia"
        assert (config.data.sequence_length, config.data.global_batch_size) == (512, 256)
        assert (config.optimizer.lr, config.optimizer.weight_decay, config.optimizer.max_grad_norm) == (1e-4, 0.01, 1.0)
        assert config.trainer.max_steps == 1_000_000
        assert config.schedule.warmup * config.trainer.max_steps == pytest.approx(10_000)
        assert config.model.hidden_dropout_prob == config.model.attention_probs_dropout_prob == 0.1


def test_bert_is_the_default_and_the_defaults_are_its_own() -> None:
    config = run_config("trainer.max_steps=1")
    assert config.model == BertConfig()
    assert run_config("trainer.max_steps=1", "tokenizer=bpe").tokenizer == BpeConfig()
