"""From a run folder to a model in the transformers format."""

import logging
from pathlib import Path

import torch
import yaml

from bertlab.data.tokenizer import Tokenizer
from bertlab.errors import UserError
from bertlab.hub import load_pretrained, save_pretrained
from bertlab.models.bert import BertForMaskedLM
from bertlab.models.config import BertConfig

log = logging.getLogger(__name__)


def load_run(run_dir: Path) -> BertForMaskedLM:
    """The weights of a run: the final ones, or those of the latest checkpoint of a run that did not finish.

    Args:
        run_dir: the run folder.

    Returns:
        The model, in eval mode.

    Raises:
        UserError: when the folder is not a run folder, or holds no weights yet.
    """
    if not (run_dir / "run.json").is_file():
        raise UserError(f"{run_dir} is not a run folder: it has no run.json")
    if (run_dir / "model").is_dir():
        return load_pretrained(run_dir / "model", BertForMaskedLM)
    checkpoints = sorted((run_dir / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        raise UserError(f"{run_dir} holds no weights: the run ended before its first checkpoint")
    log.info("the run did not finish; using its latest checkpoint, %s", checkpoints[-1].name)
    config = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    model = BertForMaskedLM(BertConfig.from_dict(config["model"]))
    state = torch.load(checkpoints[-1], map_location="cpu", weights_only=True)["state_dict"]
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state.items()})
    return model.eval()


def export_run(run_dir: Path, out: Path) -> None:
    """Write a run's model and tokenizer to ``out``, in the transformers format.

    Args:
        run_dir: the run folder.
        out: the folder to write; made if absent.

    Raises:
        UserError: as ``load_run``, or when ``out`` already holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder: name another one")
    save_pretrained(load_run(run_dir), out, Tokenizer.load(run_dir / "tokenizer"))
