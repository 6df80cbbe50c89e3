"""Rows: how the stream of tokens is cut into the sequences that the model sees."""

import numpy as np

from bertlab.data.shards import TokenShards
from bertlab.data.tokenizer import Tokenizer
from bertlab.errors import UserError

# Rows are counted through a window of this many tokens, so that memory stays bounded however long the stream is.
_WINDOW_TOKENS = 1 << 20


class Rows:
    """Row k is [CLS], a piece of the stream, [SEP].

    Attributes:
        lengths: int32 [n], the tokens of each row, [CLS] and [SEP] included.
        maskable: int32 [n], how many tokens of each row may be predicted: those whose id is not special. A literal
            "[SEP]" or an [UNK] in the text is not one of them, so a row may have none.
    """

    def __init__(self, shards: TokenShards, starts: np.ndarray, lengths: np.ndarray, tokenizer: Tokenizer) -> None:
        """Describe the rows; no token is copied.

        Args:
            shards: the stream.
            starts: int64 [n], ascending, the offset of each row's piece in the stream.
            lengths: int32 [n], tokens of each row, [CLS] and [SEP] included. Between two pieces there is nothing but
                separators.
            tokenizer: gives the ids of the special tokens.
        """
        self.lengths = lengths
        self._shards = shards
        self._starts = starts
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._is_ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
        self._is_ordinary[list(tokenizer.special_ids)] = False
        self.maskable = self._count_maskable()

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._starts)

    def read(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens of one row.

        Returns:
            ``input_ids`` int64 [i], ``maskable`` bool [i], and ``word_ids`` int64 [i]: tokens of one word have the same
            number, ascending within the row, and tokens that are not maskable have -1. A row may begin in the middle
            of a word.
        """
        start = int(self._starts[row])
        length = int(self.lengths[row])
        stop = start + length - 2

        input_ids = np.empty(length, dtype=np.int64)
        input_ids[0] = self._cls_id
        input_ids[1:-1] = self._shards.token_ids(start, stop)
        input_ids[-1] = self._sep_id
        maskable = self._is_ordinary[input_ids]

        word_ids = np.empty(length, dtype=np.int64)
        np.cumsum(self._shards.word_starts(start, stop), out=word_ids[1:-1])
        word_ids[~maskable] = -1
        return input_ids, maskable, word_ids

    def _count_maskable(self) -> np.ndarray:
        counts = np.empty(len(self), dtype=np.int32)
        stops = self._starts + self.lengths - 2
        first = 0
        while first < len(self):
            last = max(first + 1, int(np.searchsorted(stops, self._starts[first] + _WINDOW_TOKENS, side="right")))
            window = self._shards.token_ids(int(self._starts[first]), int(stops[last - 1]))
            # A sum reaches up to the next row's start: the separator that may stand between adds nothing.
            counts[first:last] = np.add.reduceat(
                self._is_ordinary[window], self._starts[first:last] - self._starts[first], dtype=np.int32
            )
            first = last
        return counts


def build_rows(
    shards: TokenShards, *, packing: str, sequence_length: int, tokenizer: Tokenizer, split: str = "training"
) -> Rows:
    """Cut a stream into rows of at most ``sequence_length`` tokens.

    Args:
        shards: the stream, documents that each end with a separator.
        packing: ``join`` cuts the stream into full rows whatever the documents are, and only the last row may be
            shorter; the separators between documents stay, and the last one is left out because the row's own [SEP]
            stands there. ``none`` gives every document rows of its own, several if it is long.
        sequence_length: tokens of a full row, [CLS] and [SEP] included; at least 3.
        tokenizer: gives the ids of the special tokens.
        split: what the text is called in messages.

    Raises:
        UserError: when there is no token at all, or under ``join`` fewer than one row holds.
    """
    capacity = sequence_length - 2
    if shards.num_documents == 0:
        raise UserError(f"the {split} text has no tokens: every document is empty")
    if packing == "none":
        starts, sizes = _cut_documents(shards.document_ends, capacity)
    else:
        starts, sizes = _cut_stream(shards.num_tokens - 1, capacity)
        if sizes[0] < capacity:
            raise UserError(
                f"the {split} text has {sizes[0]} tokens, fewer than the {capacity} that one row of "
                f"data.sequence_length={sequence_length} holds beside [CLS] and [SEP]: lower data.sequence_length, "
                "set data.packing=none, or give more text"
            )
    return Rows(shards, starts, sizes + np.int32(2), tokenizer)


def _cut_stream(num_tokens: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets int64 [n] and sizes int32 [n] of consecutive pieces of ``capacity`` tokens, the last perhaps shorter."""
    starts = np.arange(0, num_tokens, capacity, dtype=np.int64)
    sizes = np.full(len(starts), capacity, dtype=np.int32)
    sizes[-1] = num_tokens - starts[-1]
    return starts, sizes


def _cut_documents(document_ends: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets int64 [n] and sizes int32 [n] of the pieces when each document is cut by itself, separators left out."""
    document_starts = np.concatenate(([0], document_ends[:-1]))
    pieces = -(-(document_ends - 1 - document_starts) // capacity)  # per document, rounded up
    first_piece = np.cumsum(pieces) - pieces
    starts = np.arange(pieces.sum()) * capacity + np.repeat(document_starts - first_piece * capacity, pieces)
    sizes = np.minimum(capacity, np.repeat(document_ends - 1, pieces) - starts)
    return starts, sizes.astype(np.int32)
