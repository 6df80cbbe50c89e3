"""The token stream on disk: written once in order, read through memory maps."""

import json
from pathlib import Path
from typing import Any

import numpy as np

SHARD_TOKENS = 1 << 26  # a multiple of 8, so that the packed bits of a shard fill whole bytes
_FLUSH_TOKENS = 1 << 18
_STREAM = "stream.json"


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type on disk that holds every id: uint16 for up to 65,536 entries, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


class ShardWriter:
    """Writes a stream into a folder: ``tokens-*.bin``, ``words-*.bin`` (a bit a token), ``document_ends.bin``."""

    def __init__(self, folder: Path, dtype: np.dtype, *, shard_tokens: int = SHARD_TOKENS) -> None:
        """Start a stream.

        Args:
            folder: an existing, empty folder.
            dtype: type of the tokens on disk; see ``token_dtype``.
            shard_tokens: tokens in a file; a multiple of 8.
        """
        assert shard_tokens % 8 == 0, "the bits of a shard must fill whole bytes"
        self.num_tokens = 0
        self.num_documents = 0
        self.last_document_end = 0
        self._folder = folder
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_pending = 0
        self._num_written = 0
        self._ends = (folder / "document_ends.bin").open("wb")

    def append(self, token_ids: np.ndarray, word_starts: np.ndarray, document_ends: np.ndarray) -> None:
        """Add the next stretch of the stream.

        Args:
            token_ids: [n] ids, separators included.
            word_starts: bool [n], true where a token starts a word and at separators.
            document_ends: positions within this stretch just after the separators, in order.
        """
        ends = document_ends.astype(np.int64) + self.num_tokens
        self._ends.write(ends.tobytes())
        if ends.size:
            self.last_document_end = int(ends[-1])
        self.num_documents += ends.size
        self.num_tokens += len(token_ids)
        self._pending.append((token_ids.astype(self._dtype, copy=False), word_starts))
        self._num_pending += len(token_ids)
        if self._num_pending >= _FLUSH_TOKENS:
            self._flush(self._num_pending // 8 * 8)

    def close(self) -> None:
        """Write what is left, and the file that describes the stream."""
        self._flush(self._num_pending)
        self._ends.close()
        description = {
            "dtype": self._dtype.name,
            "shard_tokens": self._shard_tokens,
            "num_tokens": self.num_tokens,
            "num_documents": self.num_documents,
        }
        (self._folder / _STREAM).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    def _flush(self, count: int) -> None:
        if not self._num_pending:
            return
        token_ids, word_starts = (np.concatenate(arrays) for arrays in zip(*self._pending, strict=True))
        start = 0
        while start < count:
            shard, offset = divmod(self._num_written, self._shard_tokens)
            stop = min(count, start + self._shard_tokens - offset)
            with _shard_file(self._folder, "tokens", shard).open("ab") as file:
                file.write(token_ids[start:stop].tobytes())
            with _shard_file(self._folder, "words", shard).open("ab") as file:
                file.write(np.packbits(word_starts[start:stop], bitorder="little").tobytes())
            self._num_written += stop - start
            start = stop
        self._pending = [(token_ids[count:], word_starts[count:])]
        self._num_pending -= count


class TokenShards:
    """A stream of token ids, memory-mapped: every document's tokens, then one separator.

    Attributes:
        folder: that folder.
        num_tokens: length of the stream, separators included.
        num_documents: number of documents, each with at least one token.
        document_ends: int64 [num_documents], the stream position just after each document's separator.
    """

    def __init__(self, folder: str | Path) -> None:
        """Map the files.

        Args:
            folder: the folder that a ``ShardWriter`` filled.
        """
        self.folder = Path(folder)
        description: dict[str, Any] = json.loads((self.folder / _STREAM).read_text(encoding="utf-8"))
        self.num_tokens: int = description["num_tokens"]
        self.num_documents: int = description["num_documents"]
        self.document_ends = _map(self.folder / "document_ends.bin", np.dtype(np.int64))
        self._shard_tokens: int = description["shard_tokens"]
        shards = range(-(-self.num_tokens // self._shard_tokens))
        dtype = np.dtype(description["dtype"])
        self._tokens = [_map(_shard_file(self.folder, "tokens", shard), dtype) for shard in shards]
        self._words = [_map(_shard_file(self.folder, "words", shard), np.dtype(np.uint8)) for shard in shards]

    def __reduce__(self) -> tuple[type["TokenShards"], tuple[Path]]:
        """A copy in another process maps the files anew instead of carrying them along."""
        return TokenShards, (self.folder,)

    def token_ids(self, start: int, stop: int) -> np.ndarray:
        """The ids of ``stream[start:stop]``: int32 [stop - start].

        Raises:
            IndexError: when the stretch is not within the stream.
        """
        self._check(start, stop)
        parts = [self._tokens[shard][low:high] for shard, low, high in self._stretches(start, stop)]
        return np.concatenate([np.empty(0, np.int32), *parts], dtype=np.int32, casting="unsafe")

    def word_starts(self, start: int, stop: int) -> np.ndarray:
        """Whether each token of ``stream[start:stop]`` starts a word: bool [stop - start], true at separators.

        Raises:
            IndexError: when the stretch is not within the stream.
        """
        self._check(start, stop)
        parts = [np.empty(0, bool)]
        for shard, low, high in self._stretches(start, stop):
            first = low // 8
            bits = np.unpackbits(self._words[shard][first : -(-high // 8)], bitorder="little")
            parts.append(bits[low - first * 8 : high - first * 8].astype(bool))
        return np.concatenate(parts)

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"[{start}:{stop}] is not within a stream of {self.num_tokens} tokens")

    def _stretches(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(shard, first, last + 1) of the parts of ``stream[start:stop]``."""
        stretches = []
        while start < stop:
            shard, low = divmod(start, self._shard_tokens)
            high = min(self._shard_tokens, low + stop - start)
            stretches.append((shard, low, high))
            start += high - low
        return stretches


def _shard_file(folder: Path, what: str, shard: int) -> Path:
    return folder / f"{what}-{shard:05d}.bin"


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    # A plain array over the map: indexing a np.memmap is several times slower. An empty file cannot be mapped.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r")) if path.stat().st_size else np.empty(0, dtype)
