"""Batch: the tensors of one forward pass, built from a plan of the sampler."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertlab.data.config import MaskingConfig
from bertlab.data.masking import mask_tokens, masked_count
from bertlab.data.packing import Rows
from bertlab.data.sampler import MicroBatchPlan
from bertlab.ops.loss import IGNORED

_WIDTH_MULTIPLE = 8  # tensor cores want it, and it keeps the number of distinct shapes small


class Batch(NamedTuple):
    """A micro-batch, masked.

    Attributes:
        input_ids: int64 [b, i], padded to the longest row, rounded up to a multiple of 8 (at most the sequence length).
        attention_mask: bool [b, i], true at real tokens; None when nothing is padded.
        masked_positions: int64 [m], where the predicted tokens are in the flattened [b * i]. Its length depends on b
            and the sequence length alone, so that shapes stay static; the unused rest points to 0.
        labels: int64 [m], the original ids there; -100 in the unused rest.
        global_masked: predicted tokens of the whole global batch, by which the sum of the losses is divided; see
            ``MicroBatchPlan``.
        num_tokens: real tokens, special ones included.
        rows: int64 [b], row numbers in the data set.
    """

    input_ids: Tensor
    attention_mask: Tensor | None
    masked_positions: Tensor
    labels: Tensor
    global_masked: int
    num_tokens: int
    rows: Tensor


def build_batch(
    plan: MicroBatchPlan, rows: Rows, masking: MaskingConfig, *, seed: int, sequence_length: int, pad_id: int
) -> Batch:
    """Read the rows of a plan, pad and mask them.

    Args:
        plan: which rows, of which epochs.
        rows: all rows of the data set.
        masking: with the vocabulary's ids filled in.
        seed: seed of the masks.
        sequence_length: tokens of a full row.
        pad_id: id of the padding token.
    """
    b = len(plan.rows)
    lengths = torch.from_numpy(rows.lengths[plan.rows])
    longest = int(lengths.max())
    width = min(-(-longest // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE, sequence_length)

    input_ids = np.full((b, width), pad_id, dtype=np.int64)
    maskable = np.zeros((b, width), dtype=bool)
    word_ids = np.full((b, width), -1, dtype=np.int64)
    for place, row in enumerate(plan.rows.tolist()):
        length = int(rows.lengths[row])
        for padded, values in zip((input_ids, maskable, word_ids), rows.read(row), strict=True):
            padded[place, :length] = values

    index = torch.from_numpy(plan.rows)
    masked_ids, labels = mask_tokens(
        torch.from_numpy(input_ids),
        torch.from_numpy(maskable),
        seed=seed,
        epoch=torch.from_numpy(plan.epochs),
        index=index,
        config=masking,
        word_ids=torch.from_numpy(word_ids),
    )
    positions = (labels.flatten() != IGNORED).nonzero().squeeze(1)
    unused = b * masked_count(sequence_length - 2, masking.probability) - len(positions)
    return Batch(
        input_ids=masked_ids,
        attention_mask=None if bool((lengths == width).all()) else torch.arange(width) < lengths[:, None],
        masked_positions=torch.nn.functional.pad(positions, (0, unused), value=0),
        labels=torch.nn.functional.pad(labels.flatten()[positions], (0, unused), value=IGNORED),
        global_masked=plan.global_masked,
        num_tokens=int(lengths.sum()),
        rows=index,
    )
