"""save_pretrained and load_pretrained: whole models to and from a folder."""

import logging
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

import torch
from torch import Tensor

from bertlab.errors import UserError, check, user_path
from bertlab.hub.configs import read_config, write_config
from bertlab.hub.files import CONFIG, WEIGHTS, find_folder, read_json, read_tensors, write_json, write_tensors
from bertlab.hub.layouts import BERTLAB, LAYOUTS, Layout, explain_misfit, layout_of
from bertlab.models.bert import BertForMaskedLM, BertForSequenceClassification, BertModel
from bertlab.models.config import BertConfig

log = logging.getLogger(__name__)

_CLASSES = (BertModel, BertForMaskedLM, BertForSequenceClassification)
# What a classifier adds to an encoder; a checkpoint that was trained for something else lacks it.
_CLASSIFIER_PARTS = ("bert.pooler.", "head.", "classifier.")
# What an encoder without a head may begin with, in either of transformers' layouts and in ours.
_ENCODER_PARTS = ("embeddings.", "position.", "encoder.", "layers.", "final_norm.", "pooler.")

Model = TypeVar("Model", BertModel, BertForMaskedLM, BertForSequenceClassification)


class _BertlabTokenizer(Protocol):
    def save_pretrained(self, folder: Path, *, token_types: bool, model_max_length: int) -> Any: ...


@runtime_checkable
class _TransformersTokenizer(Protocol):
    is_fast: bool

    def save_pretrained(self, save_directory: Path) -> Any: ...


def save_pretrained(
    model: BertModel | BertForMaskedLM | BertForSequenceClassification,
    folder: str | Path,
    tokenizer: _BertlabTokenizer | _TransformersTokenizer | None = None,
) -> None:
    """Write a model folder: config.json, model.safetensors and, if given, the tokenizer.

    Models that transformers has (``layout_of(model.config)``) are written in its format. Others, for which it has no
    architecture, are written under our own names, which ``load_pretrained`` reads, and the log says so. Each file is
    replaced in one stroke, config.json last.

    Args:
        model: tensors are stored in the type that its parameters have; the decoder, which is tied, is not stored.
        folder: made if need be.
        tokenizer: ``bertlab.data``'s or one of transformers.

    Raises:
        UserError: when ``folder`` cannot be made.
    """
    if not isinstance(model, _CLASSES):
        raise ValueError(f"a {type(model).__name__} is not one of {', '.join(c.__name__ for c in _CLASSES)}")
    folder = user_path(folder, "folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from error
    layout = LAYOUTS[layout_of(model.config) or BERTLAB.model_type]
    if layout is BERTLAB:
        log.warning("%s is in bertlab's own format: %s", folder, explain_misfit(model.config))
    tensors = _to_file_tensors(model, layout)
    write_tensors(folder / WEIGHTS, tensors)
    if tokenizer is not None:
        if isinstance(tokenizer, _TransformersTokenizer):
            tokenizer.save_pretrained(folder)
        else:
            tokenizer.save_pretrained(
                folder,
                token_types=model.config.type_vocab_size > 0,
                model_max_length=model.config.max_position_embeddings,
            )
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    num_labels = model.config.num_labels if isinstance(model, BertForSequenceClassification) else None
    write_json(folder / CONFIG, write_config(model.config, layout, type(model).__name__, dtype, num_labels))


def _full_name(model: torch.nn.Module, name: str) -> str:
    """The name that a tensor has in a model with a head."""
    return f"bert.{name}" if isinstance(model, BertModel) else name


def _to_file_tensors(model: torch.nn.Module, layout: Layout) -> dict[str, Tensor]:
    tensors = {}
    for name, value in model.state_dict().items():
        targets = layout.file_names(_full_name(model, name))
        for target, part in zip(targets, value.detach().cpu().chunk(len(targets)), strict=True):
            if isinstance(model, BertModel):
                target = target.removeprefix(layout.prefix)
            tensors[target] = part.contiguous()
    return tensors


@overload
def load_pretrained(path_or_hub_id: str | Path) -> BertForMaskedLM: ...


@overload
def load_pretrained(path_or_hub_id: str | Path, cls: type[Model]) -> Model: ...


def load_pretrained(path_or_hub_id: str | Path, cls: Any = BertForMaskedLM) -> Any:
    """Open a model, in eval mode and with float32 parameters, whatever type the file has.

    Args:
        path_or_hub_id: a run folder, a folder in transformers' format (BERT or ModernBERT) or in our own, or a hub id.
        cls: ``BertModel`` (without a pooler if the file has none), ``BertForMaskedLM``, or
            ``BertForSequenceClassification``: its head is fresh, from torch's generator, where the file holds no
            classifier, and the log says so. Heads that ``cls`` does not have are left out; the log names them.

    Raises:
        UserError: when nothing can be opened there, the model is not one of ours, or tensors are missing, of a wrong
            shape, or belong to a part of the encoder that the config does not have.
    """
    if cls not in _CLASSES:
        raise ValueError(f"cls={cls} is not one of {', '.join(c.__name__ for c in _CLASSES)}")
    folder = find_folder(path_or_hub_id)
    layout, config = read_config(read_json(folder / CONFIG), str(folder / CONFIG))
    tensors = {_normalize(name, layout): value for name, value in read_tensors(folder).items()}
    model = _build(cls, config, any(name.startswith(f"{layout.prefix}pooler.") for name in tensors))
    model.load_state_dict(_from_file_tensors(model, layout, tensors, folder))
    return model.eval()


def _build(cls: Any, config: BertConfig, has_pooler: bool) -> torch.nn.Module:
    if cls is BertModel:
        if config.pooler and not has_pooler:
            log.info("the file has no pooler: pooler_output will be None")
        return BertModel(config, add_pooler=has_pooler)
    return cls(config)


def _normalize(name: str, layout: Layout) -> str:
    """One name for what files call differently: a base model has no prefix, old norms have gamma and beta."""
    if name.startswith(_ENCODER_PARTS):
        name = layout.prefix + name
    if layout.names is not None:
        name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
    # Some files repeat the bias under the name that it has as a part of the tied decoder.
    return name.replace("cls.predictions.decoder.bias", "cls.predictions.bias")


def _from_file_tensors(
    model: torch.nn.Module, layout: Layout, tensors: dict[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """Our state from the file's; see ``load_pretrained``."""
    state = model.state_dict()
    sources = {name: layout.file_names(_full_name(model, name)) for name in state}
    has_classifier = any(name.startswith("classifier.") for name in tensors)
    fresh, problems = [], []
    for name, parts in sources.items():
        missing = [part for part in parts if part not in tensors]
        if not missing:
            value = torch.cat([tensors[part] for part in parts]) if len(parts) > 1 else tensors[parts[0]]
            if value.shape == state[name].shape:
                state[name] = value
            else:
                problems.append(f"{', '.join(parts)}: {list(value.shape)}, not {list(state[name].shape)}")
        elif (
            isinstance(model, BertForSequenceClassification)
            and not has_classifier
            and name.startswith(_CLASSIFIER_PARTS)
        ):
            fresh += missing
        else:
            problems += [f"{part}: missing" for part in missing]
    used = {part for parts in sources.values() for part in parts}
    tied = {"cls.predictions.decoder.weight", "decoder.weight"}
    unused = sorted(name for name in set(tensors) - used - tied if not name.endswith("position_ids"))
    heads = [
        name for name in unused if not name.startswith(layout.prefix) or name.startswith(f"{layout.prefix}pooler.")
    ]
    problems += [f"{name}: not a part of the model that {CONFIG} describes" for name in unused if name not in heads]
    if problems:
        shown = problems[:20] + [f"and {len(problems) - 20} more"] * (len(problems) > 20)
        check([f"{folder / WEIGHTS} does not fit a {type(model).__name__} of its {CONFIG}:", *shown])
    if heads:
        log.info("%s: not used by %s: %s", folder, type(model).__name__, ", ".join(heads))
    if fresh:
        log.warning("%s: not in the file, so fresh and untrained: %s", folder, ", ".join(fresh))
    return state
