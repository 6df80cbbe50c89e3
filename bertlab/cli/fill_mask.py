"""``python scripts/fill_mask.py MODEL TEXT``: what the model expects at [MASK]."""

import argparse
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bertlab.cli.app import run_command
from bertlab.errors import UserError

if TYPE_CHECKING:
    from bertlab.data.tokenizer import Tokenizer
    from bertlab.models.bert import BertForMaskedLM


def fill_mask(
    model: "BertForMaskedLM", tokenizer: "Tokenizer", text: str, top: int
) -> Iterator[list[tuple[str, float]]]:
    """The likeliest tokens at every [MASK] of a text.

    Args:
        model: in eval mode.
        tokenizer: the model's tokenizer.
        text: holds ``[MASK]`` at least once.
        top: how many tokens to give.

    Yields:
        For each mask in order: tokens and probabilities, the likeliest first.

    Raises:
        UserError: when there is no mask, or the text is too long for the model.
    """
    import torch

    mask_token = tokenizer.backend.id_to_token(tokenizer.mask_id)
    assert mask_token is not None
    ids = [tokenizer.cls_id, *tokenizer.encode(text.replace("[MASK]", mask_token)).ids, tokenizer.sep_id]
    if tokenizer.mask_id not in ids:
        raise UserError(f"there is no [MASK] in {text!r}")
    limit = model.config.max_position_embeddings
    if len(ids) > limit:
        raise UserError(f"the text has {len(ids)} tokens, but the model takes {limit}")
    input_ids = torch.tensor([ids])
    positions = (input_ids[0] == tokenizer.mask_id).nonzero().squeeze(1)
    with torch.inference_mode():
        logits = model(input_ids, masked_positions=positions).logits
    for probabilities, tokens in zip(*logits.softmax(dim=-1).topk(min(top, logits.shape[-1])), strict=True):
        yield [(tokenizer.decode([int(t)]).strip(), float(p)) for p, t in zip(probabilities, tokens, strict=True)]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description="Fill in the masks of a text: the likeliest tokens with probabilities."
    )
    parser.add_argument("model", help="a run folder, a folder in the transformers format, or a hub id")
    parser.add_argument("text", help='a sentence with [MASK] in it: "In the beginning God created the [MASK] ."')
    parser.add_argument("--top", type=int, default=5, metavar="N", help="tokens to print for each mask (5)")
    arguments = parser.parse_args()

    def command() -> None:
        if arguments.top < 1:
            raise UserError(f"--top {arguments.top} must be at least 1")
        logging.getLogger("bertlab").setLevel(logging.WARNING)  # only the answers
        from bertlab.data.tokenizer import Tokenizer
        from bertlab.hub import load_pretrained
        from bertlab.hub.files import find_folder
        from bertlab.models.bert import BertForMaskedLM

        folder = find_folder(arguments.model)
        model = load_pretrained(folder, BertForMaskedLM)
        tokenizer = Tokenizer.load(folder)
        print(arguments.text)
        for number, answers in enumerate(fill_mask(model, tokenizer, arguments.text, arguments.top)):
            if number:
                print()
            for token, probability in answers:
                print(f"  {probability:.4f}  {token}")

    sys.exit(run_command(command))
