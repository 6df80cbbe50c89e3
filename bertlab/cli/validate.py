"""From Hydra's config to plain dataclasses, with the problems of all groups in one message. Imports no torch."""

import dataclasses
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bertlab.errors import UserError, check
from bertlab.training.config import RunConfig

FROM_TOKENIZER = ("vocab_size", "mask_token_id", "special_token_ids")


def to_run_config(config: DictConfig, options: dict[str, str] | None = None) -> RunConfig:
    """Turn each group into its dataclass, then check across groups.

    Args:
        config: the composed config.
        options: the chosen option of every group, to find out which was taken out; None: not asked.

    Returns:
        The run's config; below it there is no OmegaConf.

    Raises:
        UserError: with the problems of all groups.
    """
    values: dict[str, Any] = {}
    problems = unknown_keys(config)
    for name in (field.name for field in dataclasses.fields(RunConfig)):
        is_group = OmegaConf.is_config(config.get(name))
        if name not in config or (is_group and options is not None and name not in options):
            problems.append(f"{name} was taken out, but a run needs it")
            continue
        node = config[name]
        try:
            values[name] = OmegaConf.to_object(node) if OmegaConf.is_config(node) else node
        except UserError as error:
            problems += str(error).splitlines()
    problems += across_groups(values)
    check(problems)
    return RunConfig(**values)


def unknown_keys(config: DictConfig) -> list[str]:
    """The keys that ``+key=value`` added: Hydra lets them pass its schemas, and nothing would ever read them."""
    problems = []
    for parent, node in [("", config)] + [(f"{name}.", config[name]) for name in map(str, config)]:
        schema = OmegaConf.get_type(node) if OmegaConf.is_config(node) else None
        known = getattr(schema, "__dataclass_fields__", None)
        if known is not None:
            problems += [
                f"{parent}{key}: there is no {key!r} in {parent.rstrip('.') or 'the configuration'}; "
                f"it has {', '.join(sorted(known))}"
                for key in map(str, node)
                if key not in known
            ]
    return problems


def across_groups(values: dict[str, Any]) -> list[str]:
    """The problems that show only when two groups are seen together; groups that are broken themselves are left out."""
    problems = []
    model, data, masking = values.get("model"), values.get("data"), values.get("masking")
    if model is not None and data is not None and data.sequence_length > model.max_position_embeddings:
        problems.append(
            f"data.sequence_length={data.sequence_length} is longer than "
            f"model.max_position_embeddings={model.max_position_embeddings}"
        )
    if model is not None and model.pad_token_id != 0:
        problems.append(f"model.pad_token_id={model.pad_token_id} comes from the tokenizer: leave it out")
    if masking is not None:
        for name in FROM_TOKENIZER:
            if getattr(masking, name):
                problems.append(f"masking.{name} comes from the tokenizer: leave it out")
    return problems


def check_device(accelerator: str, precision: str) -> None:
    """Refuse what the machine cannot do, before anything else is touched. This one needs torch.

    Raises:
        UserError: for a GPU that is not there, or float16 on the CPU, which Lightning would silently replace by
            bfloat16.
    """
    import torch

    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    problems = []
    if accelerator == "gpu" and not has_gpu:
        problems.append("trainer.accelerator=gpu, but torch sees no GPU on this machine")
    if precision.startswith("16") and (accelerator == "cpu" or not has_gpu):
        problems.append(f"trainer.precision={precision} needs a GPU; on the CPU use 32-true (or bf16-mixed)")
    check(problems)
