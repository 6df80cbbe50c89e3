"""The files of a model folder: finding it, reading its tensors, replacing them in one stroke."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from bertlab.errors import UserError, user_path

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_INDEX = "model.safetensors.index.json"


def find_folder(source: str | Path) -> Path:
    """The model folder that a user means.

    Args:
        source: a run folder (its ``model/`` is meant), a folder that holds a config.json, or a hub id, whose files are
            downloaded into the hub's cache.

    Raises:
        UserError: when it is none of these.
    """
    path = user_path(source, "model")
    try:
        for folder in (path, path / "model"):
            if (folder / CONFIG).is_file():
                return folder
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise UserError(f"{path} cannot be opened: {error.strerror}") from error
    if is_folder:
        raise UserError(
            f"{path} holds neither {CONFIG} nor model/{CONFIG}: give the folder of a finished run (export.py gets the "
            "latest checkpoint out of an unfinished one), or a model folder"
        )
    if exists:
        raise UserError(f"{path} is a file: give the folder of a finished run, a model folder or a hub id")
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(source)):
        raise UserError(f"{path} does not exist")
    return _download(str(source))


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(hub_id, allow_patterns=["*.json", "*.safetensors", "vocab.txt"])
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{hub_id} is no folder here, and the Hugging Face hub did not give it either: {reason}"
        ) from error
    if not (Path(folder) / CONFIG).is_file():
        raise UserError(f"{hub_id} on the Hugging Face hub holds no {CONFIG}")
    return Path(folder)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UserError: when the file holds something else.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} does not hold a JSON object")
    return values


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder's safetensors file, or of its parts when it is split.

    Raises:
        UserError: when there is no such file, or one that cannot be read. Pickled weights are never opened.
    """
    if (folder / WEIGHTS).is_file():
        files = [folder / WEIGHTS]
    elif (folder / _INDEX).is_file():
        parts = read_json(folder / _INDEX).get("weight_map", {})
        files = [folder / Path(name).name for name in sorted(set(parts.values()))]
    else:
        pickled = sorted(file.name for suffix in ("*.bin", "*.pt", "*.ckpt") for file in folder.glob(suffix))
        why = ""
        if pickled:
            why = f"; {', '.join(pickled)} is a pickle, which may run code when it is opened: convert it to safetensors"
        raise UserError(f"{folder} holds no {WEIGHTS}{why}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= safetensors.torch.load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} cannot be read: {error}") from error
    return tensors


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Replace a file in one stroke, so that nobody ever sees half of it.

    Args:
        file: the file, which need not exist.
        write: writes the new content to the path that it is given, in the same folder.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)  # safetensors makes a file that only its owner may read
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file as transformers does, in one stroke."""
    replace_file(file, lambda temporary: safetensors.torch.save_file(tensors, temporary, metadata={"format": "pt"}))


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Write a JSON object in one stroke."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))
