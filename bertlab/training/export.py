"""From a run folder to a model in the transformers format."""

import logging
from pathlib import Path

import yaml

from bertlab.data.tokenizer import Tokenizer
from bertlab.errors import UserError
from bertlab.hub import layout_of, load_pretrained, save_pretrained
from bertlab.hub.files import CONFIG
from bertlab.models.bert import BertForMaskedLM
from bertlab.models.config import BertConfig
from bertlab.training.checkpoint import read_weights

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
    if (run_dir / "model" / CONFIG).is_file():  # written last: without it the run ended while it exported
        return load_pretrained(run_dir / "model", BertForMaskedLM)
    checkpoints = sorted((run_dir / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        raise UserError(f"{run_dir} holds no weights: the run ended before its first checkpoint")
    log.info("the run did not finish; using its latest checkpoint, %s", checkpoints[-1].name)
    config = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    model = BertForMaskedLM(BertConfig.from_dict(config["model"]))
    model.load_state_dict(read_weights(checkpoints[-1]))
    return model.eval()


def export_run(run_dir: Path, out: Path) -> str | None:
    """Write a run's model and tokenizer to ``out``, in the transformers format where it has the architecture.

    Args:
        run_dir: the run folder.
        out: the folder to write; made if absent.

    Returns:
        The layout, as ``hub.layout_of``: None when only ``load_pretrained`` opens it.

    Raises:
        UserError: as ``load_run``, or when ``out`` already holds something or cannot be made.
    """
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise UserError(f"{out}: {error.strerror}") from error
    if taken:
        raise UserError(f"{out} exists and is not an empty folder: name another one")
    model = load_run(run_dir)
    save_pretrained(model, out, Tokenizer.load(run_dir / "tokenizer"))
    return layout_of(model.config)
