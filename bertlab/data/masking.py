"""Masking for the masked-language-model loss: which tokens are predicted, and what stands in their place.

Every draw is a hash of (seed, epoch, row) and of a position, so a row is masked the same way whatever batch it is in,
however wide that batch is padded, and whichever process builds it.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bertlab.data.config import MaskingConfig
from bertlab.ops.loss import IGNORED
from bertlab.ops.random import derive_seed, hash_counters, uniform

# Joshi et al. (2020, arXiv:1907.10529), section 3.1.
SPAN_PROBABILITY = 0.2
SPAN_MAX_WORDS = 10

# A position has one number for each of these draws: which units come first, what becomes of a chosen one, which token
# replaces it, and how long a span is.
_ORDER, _ACTION, _REPLACEMENT, _SPAN = range(4)
_DRAWS = 4

_LARGEST = torch.iinfo(torch.int64).max


def masked_count(n: int, p: float) -> int:
    """How many of a row's tokens are predicted.

    Args:
        n: number of maskable tokens in the row.
        p: ``MaskingConfig.probability``.

    Returns:
        0 if ``n`` is 0, else ``max(1, round(p * n))``, with Python's rounding.
    """
    return 0 if n == 0 else max(1, round(p * n))


@lru_cache(maxsize=64)
def masked_counts(longest: int, p: float) -> np.ndarray:
    """``masked_count`` of 0, 1, ..., ``longest``, as an int64 array to look numbers up in."""
    return np.array([masked_count(n, p) for n in range(longest + 1)], dtype=np.int64)


def mask_tokens(
    input_ids: Tensor,
    maskable: Tensor,
    *,
    seed: int,
    epoch: int | Tensor,
    index: Tensor,
    config: MaskingConfig,
    word_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose the tokens to predict and hide them (Devlin et al., 2019, arXiv:1810.04805, section 3.1).

    In every row exactly ``masked_count`` of the maskable tokens are chosen:

    - ``unit="token"``: every subset of that size is equally likely.
    - ``unit="word"``: words in random order. A word longer than what is left of the count is passed over; when the
      words run out before the count is reached, the one passed over last is cut to its first tokens.
    - ``unit="span"``: the same with spans. The words between two non-maskable tokens are divided into consecutive
      spans whose lengths in words are geometric with p = 0.2, conditioned on at most 10 (mean 3.8), as in SpanBERT
      (Joshi et al., 2020, arXiv:1907.10529); only the last span before a non-maskable token is shorter than was drawn.

    A chosen token becomes [MASK] with probability ``mask_fraction``, with ``random_fraction`` a token drawn uniformly
    from all ids that are not special, and otherwise stays as it is. The tokens of a word or span share that decision,
    but each has a random token of its own.

    Args:
        input_ids: token ids [b, i], an integer type.
        maskable: bool [b, i], true where a token may be predicted: false at special tokens and padding.
        seed: seed of the masks.
        epoch: the pass over the data, an int or int64 [b]; the masks of every epoch differ.
        index: row numbers in the data set, int64 [b].
        config: probabilities, unit and the vocabulary's ids.
        word_ids: int64 [b, i], needed for words and spans. The maskable tokens of a row that have the same id are one
            word, and one with a negative id is a word of its own. In spans a word ends where its id changes.

    Returns:
        The ids with replacements, like ``input_ids``, and int64 labels [b, i]: the original id where a token was
        chosen, -100 elsewhere.

    Raises:
        ValueError: when ``config`` lacks the vocabulary's ids or all of them are special, ``word_ids`` is missing,
            ``maskable`` is not bool, or shapes do not match.
    """
    if config.vocab_size is None or config.mask_token_id is None:
        raise ValueError("mask_tokens needs vocab_size and mask_token_id in its MaskingConfig")
    _check_tensors(input_ids, maskable, epoch, index, word_ids)

    device = input_ids.device
    width = input_ids.shape[1]
    epochs = torch.as_tensor(epoch, device=device)
    keys = hash_counters(derive_seed(seed, "mask"), epochs, index)  # [b]
    positions = torch.arange(width, device=device)  # [i]

    counts = torch.from_numpy(masked_counts(width, config.probability)).to(device)[maskable.sum(1)]  # [b]
    order = hash_counters(keys[:, None], positions * _DRAWS + _ORDER)  # [b, i]
    if config.unit == "token":
        row, position = _choose_tokens(order, maskable, counts)  # [m] each, as is unit
        unit = position
    elif word_ids is None:
        raise ValueError(f"unit={config.unit} needs word_ids")
    else:
        if config.unit == "word":
            units = torch.where(word_ids < 0, -1 - positions, word_ids)
        else:
            units = _spans(word_ids, maskable, uniform(keys[:, None], positions * _DRAWS + _SPAN))
        row, position, unit = _choose_units(units, order, maskable, counts)

    original = input_ids[row, position]
    key = keys[row]
    ordinary = _ordinary_ids(config.vocab_size, config.special_token_ids).to(device)
    replacement = ordinary[hash_counters(key, position * _DRAWS + _REPLACEMENT) % len(ordinary)]
    action = uniform(key, unit * _DRAWS + _ACTION)
    shown = torch.where(action < config.mask_fraction + config.random_fraction, replacement, original)
    shown = torch.where(action < config.mask_fraction, config.mask_token_id, shown)

    ids = input_ids.clone()
    ids[row, position] = shown.to(ids.dtype)
    labels = torch.full_like(input_ids, IGNORED, dtype=torch.int64)
    labels[row, position] = original.long()
    return ids, labels


def _check_tensors(
    input_ids: Tensor, maskable: Tensor, epoch: int | Tensor, index: Tensor, word_ids: Tensor | None
) -> None:
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must be [b, i], not of shape {list(input_ids.shape)}")
    if maskable.dtype != torch.bool:
        raise ValueError(f"maskable must be bool, not {maskable.dtype}")
    per_token, per_row = input_ids.shape, input_ids.shape[:1]
    expected = [("maskable", maskable, per_token), ("index", index, per_row)]
    if word_ids is not None:
        expected.append(("word_ids", word_ids, per_token))
    if isinstance(epoch, Tensor) and epoch.dim():
        expected.append(("epoch", epoch, per_row))
    for name, tensor, shape in expected:
        if tensor.shape != shape:
            raise ValueError(
                f"{name} is {list(tensor.shape)} but must be {list(shape)}, as input_ids is {list(input_ids.shape)}"
            )


@lru_cache(maxsize=8)
def _ordinary_ids(vocab_size: int, special_token_ids: tuple[int, ...]) -> Tensor:
    """All ids that may stand in for a token, ascending."""
    ordinary = np.setdiff1d(np.arange(vocab_size), special_token_ids)
    if not len(ordinary):
        raise ValueError(f"a vocabulary of {vocab_size} entries, all of them special, has no random token to offer")
    return torch.from_numpy(ordinary)


def _choose_tokens(order: Tensor, maskable: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Row and position [m] of the ``counts`` [b] maskable tokens of each row that come first in ``order`` [b, i]."""
    most = max(counts.tolist(), default=0)
    first = order.masked_fill(~maskable, _LARGEST).topk(most, dim=1, largest=False).indices  # [b, most], sorted
    row, place = (torch.arange(most, device=order.device) < counts[:, None]).nonzero(as_tuple=True)
    return row, first[row, place]


def _choose_units(units: Tensor, order: Tensor, maskable: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take whole units of tokens in random order until each row has its count.

    Args:
        units: int64 [b, i]; the maskable tokens of a row that have the same number are one unit.
        order: int64 [b, i]; units are taken in the order of the number at their first token.
        maskable: bool [b, i].
        counts: int64 [b], tokens to choose in each row.

    Returns:
        Row and position of every chosen token, and the position of the first token of its unit; int64 [m] each.
    """
    # All maskable tokens [t], row by row, those of a unit side by side and from left to right.
    grouped, position = units.masked_fill(~maskable, _LARGEST).sort(dim=1, stable=True)
    slots = torch.arange(maskable.shape[1], device=maskable.device)
    row, slot = (slots < maskable.sum(1, keepdim=True)).nonzero(as_tuple=True)
    unit, position = grouped[row, slot], position[row, slot]

    starts = torch.ones_like(row, dtype=torch.bool)
    starts[1:] = (unit[1:] != unit[:-1]) | (row[1:] != row[:-1])
    begin = starts.nonzero().squeeze(1)  # [u]
    number = starts.cumsum(0) - 1  # [t], the unit of each token
    rank = torch.arange(len(row), device=row.device) - begin[number]  # [t], the place of each token in its unit

    unit_row, unit_position = row[begin], position[begin]  # [u]
    taken = _fill_counts(
        torch.argsort(order[unit_row, unit_position]).tolist(),
        unit_row.tolist(),
        torch.bincount(number, minlength=len(begin)).tolist(),
        counts.tolist(),
    )
    chosen = rank < torch.tensor(taken, dtype=torch.int64, device=row.device)[number]
    return row[chosen], position[chosen], unit_position[number][chosen]


def _fill_counts(order: list[int], rows: list[int], lengths: list[int], counts: list[int]) -> list[int]:
    """How many tokens of each unit are chosen, given the order, rows and lengths of the units and the rows' counts."""
    taken = [0] * len(order)
    left = list(counts)
    passed_over: dict[int, int] = {}  # row -> the last unit that did not fit
    for unit in order:
        row, length = rows[unit], lengths[unit]
        if length <= left[row]:
            taken[unit] = length
            left[row] -= length
        elif left[row]:
            passed_over[row] = unit
    for row, unit in passed_over.items():
        taken[unit] = left[row]
    return taken


def _spans(word_ids: Tensor, maskable: Tensor, draws: Tensor) -> Tensor:
    """The number of each token's span [b, i] within its row, from uniform ``draws`` [b, i], one for each word.

    A stretch is what stands between two non-maskable tokens. Word w of the row starts a stretch's first span with the
    length drawn for w, the next span takes the draw of w + 1, and so on: a stretch never needs more draws than it has
    words, so no two share one.
    """
    stretch_starts = maskable.clone()
    stretch_starts[:, 1:] &= ~maskable[:, :-1]
    word_starts = stretch_starts | (maskable & (word_ids < 0))
    word_starts[:, 1:] |= maskable[:, 1:] & (word_ids[:, 1:] != word_ids[:, :-1])

    word = (word_starts.cumsum(1) - 1).clamp(min=0)  # [b, i], as are all below
    first_word = torch.where(stretch_starts, word, 0).cummax(1).values  # of the token's stretch
    lengths = torch.bucketize(draws, _span_length_quantiles().to(draws.device), right=True) + 1
    ends = lengths.cumsum(1)
    offset = (ends - lengths).gather(1, first_word)  # words drawn before the stretch's first span
    return torch.searchsorted(ends, offset + word - first_word, right=True)


@lru_cache(maxsize=1)
def _span_length_quantiles() -> Tensor:
    """P(length <= 1), ..., P(length <= 9), float64: a uniform draw below the first means 1, above the last 10."""
    within = 1.0 - (1.0 - SPAN_PROBABILITY) ** torch.arange(1, SPAN_MAX_WORDS + 1, dtype=torch.float64)
    return within[:-1] / within[-1]
