"""Checkpoints on disk: written in one stroke, and read back without running code."""

import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from bertlab.errors import UserError
from bertlab.hub.files import replace_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same folder and renames: who is killed halfway leaves no half a checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write ``checkpoint`` to ``path``; see Lightning's class."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, lambda temporary: torch.save(checkpoint, temporary))


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """The model's tensors in a checkpoint, by the model's own names.

    Raises:
        UserError: when the file cannot be read.
    """
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise UserError(f"{file} is not a checkpoint that can be read: {str(error).splitlines()[0]}") from error
    return {name.removeprefix("model."): tensor for name, tensor in state.items()}
