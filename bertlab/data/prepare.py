"""From text to token shards: once for a corpus and a tokenizer, with every core, and kept in the cache.

Nothing here may import torch: the worker processes are started fresh and import this module.
"""

import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from tqdm import tqdm

from bertlab.data.cache import cached_folder, make_key
from bertlab.data.config import (
    DEFAULT_CACHE,
    DataConfig,
    PretrainedTokenizerConfig,
    TokenizerConfig,
    TrainedTokenizerConfig,
)
from bertlab.data.corpus import corpora
from bertlab.data.pieces import Corpus, Piece, split_at_breaks
from bertlab.data.shards import ShardWriter, TokenShards, token_dtype
from bertlab.data.tokenizer import Tokenizer
from bertlab.data.tokenizer_training import train_on_corpus
from bertlab.errors import UserError, user_path

logger = logging.getLogger(__name__)

FORMAT = f"2 tokenizers {tokenizers.__version__}"
_BATCH_CHARS = 1_000_000
_BATCH_PIECES = 8192
_EXCERPT_CHARS = 4096
# From this share of unknown tokens on there is a warning.
_MANY_UNKNOWN = 0.01
# With less text than this many batches, starting processes takes longer than they save.
_BATCHES_FOR_A_POOL = 4


class Prepared(NamedTuple):
    """What ``prepare`` gives: the tokenizer, the training stream, and the validation stream if there is one."""

    tokenizer: Tokenizer
    train: TokenShards
    val: TokenShards | None


class Tokens(NamedTuple):
    """A tokenised batch.

    Attributes:
        token_ids: [n], with a separator after each document.
        word_starts: bool [n].
        document_ends: int64, positions just after the separators.
        text_bytes: size of the text in UTF-8.
    """

    token_ids: np.ndarray
    word_starts: np.ndarray
    document_ends: np.ndarray
    text_bytes: int


def prepare(
    config: DataConfig,
    tokenizer_config: TokenizerConfig,
    *,
    check_tokenizer: Callable[[Tokenizer], None] | None = None,
) -> Prepared:
    """Train or load the tokenizer and tokenise the corpus, or take both from the cache.

    Args:
        config: the corpus, the number of processes and the cache folder.
        tokenizer_config: the tokenizer.
        check_tokenizer: called before the corpus is tokenised; it may raise.

    Raises:
        UserError: when the corpus or the tokenizer cannot be read, or the corpus holds no text.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker of ours, importing a calling program without a guard: it would wait for the lock that we hold.
        raise RuntimeError("prepare was called while a worker process started; see the error of its parent")
    train, val = corpora(config)
    cache = cache_folder(config)
    tokenizer = build_tokenizer(tokenizer_config, train, cache)
    if check_tokenizer is not None:
        check_tokenizer(tokenizer)
    workers = config.prepare_workers or _num_cores()
    return Prepared(
        tokenizer,
        build_shards(train, tokenizer, cache, workers=workers),
        build_shards(val, tokenizer, cache, workers=workers) if val is not None else None,
    )


def cache_folder(config: DataConfig) -> Path:
    """Where tokenizers and shards are kept: ``data.cache_dir``, $BERTLAB_CACHE, or ~/.cache/bertlab."""
    return user_path(config.cache_dir or os.environ.get("BERTLAB_CACHE") or DEFAULT_CACHE, "data.cache_dir")


def build_tokenizer(config: TokenizerConfig, corpus: Corpus, cache: Path) -> Tokenizer:
    """Load the tokenizer, or train it on the corpus unless the cache has it.

    Raises:
        UserError: when it cannot be loaded, or the corpus holds no text.
    """
    if isinstance(config, PretrainedTokenizerConfig):
        return Tokenizer.load(config.path, lowercase=config.lowercase)
    assert isinstance(config, TrainedTokenizerConfig), f"no tokenizer for a {type(config).__name__}"
    key = make_key(FORMAT, corpus.fingerprint(), type(config).__name__, json.dumps(vars(config), sort_keys=True))

    def build(folder: Path) -> None:
        train_on_corpus(config, corpus).backend.save(str(folder / "tokenizer.json"))

    return Tokenizer.load(cached_folder(cache / "tokenizers" / key, build, what=f"the tokenizer of {corpus.name}"))


def build_shards(corpus: Corpus, tokenizer: Tokenizer, cache: Path, *, workers: int) -> TokenShards:
    """Tokenise a corpus into shards unless the cache has them; the number of processes does not change them.

    Raises:
        UserError: when the corpus cannot be read or holds no text.
    """
    # The separator is named because a tokenizer.json does not say which of its tokens ends a document.
    key = make_key(FORMAT, corpus.fingerprint(), tokenizer.backend.to_str(), str(tokenizer.sep_id))

    def build(folder: Path) -> None:
        _write_shards(corpus, tokenizer, folder, workers)

    return TokenShards(cached_folder(cache / "shards" / key, build, what=corpus.name))


class Encoder:
    """Turns batches of pieces into token ids; made anew in each worker process."""

    def __init__(self, tokenizer_file: Path, sep_id: int, vocab_size: int) -> None:
        """Make the tokenizer.

        Args:
            tokenizer_file: the tokenizer, as tokenizer.json.
            sep_id: the separator after each document.
            vocab_size: decides the type of the ids.
        """
        self._backend = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        self._sep_id = sep_id
        self._dtype = token_dtype(vocab_size)
        # Tokenising is more than twice as fast on short texts, which stay in the processor's cache. But the place of a
        # cut would show without a pre-tokenizer (a token may reach over white space), and where the pipeline puts a
        # blank in front of every text.
        same = self._ids("a\na b") == self._ids("a") + self._ids("\na") + self._ids(" b")
        self._size = _EXCERPT_CHARS if self._backend.pre_tokenizer is not None and same else None

    def __call__(self, pieces: list[Piece]) -> Tokens:
        """Tokenise a batch.

        A document without a token leaves nothing, not even a separator; but the first document that ends in the batch
        may have begun before it, so its separator is always there, and the receiver drops it if nothing came before.
        """
        texts, ends = self._excerpts(pieces)
        token_ids: list[int] = []
        word_ids: list[int] = []
        first_of_text: list[int] = []
        document_ends: list[int] = []
        document_start = -1
        for encoding, ends_document in zip(
            self._backend.encode_batch(texts, add_special_tokens=False), ends, strict=True
        ):
            if len(encoding):
                first_of_text.append(len(token_ids))
                token_ids += encoding.ids
                word_ids += encoding.word_ids  # type: ignore[arg-type]  # None only for tokens that a template adds
            if ends_document and len(token_ids) > document_start:
                token_ids.append(self._sep_id)
                word_ids.append(-1)
                document_ends.append(len(token_ids))
                document_start = len(token_ids)
        words = np.array(word_ids, dtype=np.int32)
        word_starts = np.ones(len(words), dtype=bool)
        np.not_equal(words[1:], words[:-1], out=word_starts[1:])
        word_starts[first_of_text] = True  # word ids count from 0 in every text
        return Tokens(
            np.array(token_ids, dtype=self._dtype),
            word_starts,
            np.array(document_ends, dtype=np.int64),
            sum(len(piece.text.encode()) for piece in pieces),
        )

    def _ids(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def _excerpts(self, pieces: list[Piece]) -> tuple[list[str], list[bool]]:
        texts: list[str] = []
        ends: list[bool] = []
        for piece in pieces:
            texts += [piece.text] if self._size is None else split_at_breaks(piece.text, self._size)
            ends += [False] * (len(texts) - len(ends) - 1) + [piece.ends_document]
        return texts, ends


def _write_shards(corpus: Corpus, tokenizer: Tokenizer, folder: Path, workers: int) -> None:
    began = time.monotonic()
    text_bytes = unknown = 0
    writer = ShardWriter(folder, token_dtype(tokenizer.vocab_size))
    # The workers read it from a file: what goes through their pipe must be small, or we would wait for ever to write it
    # to one that died before it began to read.
    tokenizer_file = folder / "tokenizer.json"
    tokenizer.backend.save(str(tokenizer_file), pretty=False)
    encoder = (tokenizer_file, tokenizer.sep_id, tokenizer.vocab_size)
    with tqdm(
        total=corpus.size_bytes,
        desc=corpus.name.partition(" (")[0],
        unit="B",
        unit_scale=True,
        disable=None,
        dynamic_ncols=True,
    ) as bar:
        for tokens, position in _encoded(_batches(corpus), encoder, workers):
            token_ids, word_starts, document_ends = tokens[:3]
            if document_ends.size and document_ends[0] == 1 and writer.num_tokens == writer.last_document_end:
                token_ids, word_starts, document_ends = token_ids[1:], word_starts[1:], document_ends[1:] - 1
            writer.append(token_ids, word_starts, document_ends)
            unknown += 0 if tokenizer.unk_id is None else int((token_ids == tokenizer.unk_id).sum())
            text_bytes += tokens.text_bytes
            bar.update(position - bar.n)
    writer.close()
    if writer.num_documents == 0:
        raise UserError(f"{corpus.name}: no text: there is not a single token in it")
    if unknown > _MANY_UNKNOWN * writer.num_tokens:
        logger.warning(
            "%s: %.1f %% of the tokens are unknown to the tokenizer, and never predicted: does it fit the text?",
            *(corpus.name, 100 * unknown / writer.num_tokens),
        )
    seconds = time.monotonic() - began
    logger.info(
        "%s: %d tokens of %d documents, %.1f MB in %.1f s (%.2f MB/s)",
        *(corpus.name, writer.num_tokens, writer.num_documents),
        *(text_bytes / 1e6, seconds, text_bytes / 1e6 / seconds),
    )


def _batches(corpus: Corpus) -> Iterator[tuple[list[Piece], int]]:
    """Batches of pieces, each with the corpus's position after it."""
    batch: list[Piece] = []
    chars = 0
    for piece in corpus.documents():
        batch.append(piece)
        chars += len(piece.text)
        if chars >= _BATCH_CHARS or len(batch) >= _BATCH_PIECES:
            yield batch, corpus.position
            batch, chars = [], 0
    if batch:
        yield batch, corpus.position


def _encoded(
    batches: Iterator[tuple[list[Piece], int]], encoder: tuple[Path, int, int], workers: int
) -> Iterator[tuple[Tokens, int]]:
    """The batches tokenised, in order."""
    first = list(islice(batches, _BATCHES_FOR_A_POOL))
    batches = chain(first, batches)
    if workers == 1 or len(first) < _BATCHES_FOR_A_POOL:
        encode = Encoder(*encoder)
        for batch, position in batches:
            yield encode(batch), position
        return
    # Spawned, not forked: a fork copies the locks of whatever threads the process runs.
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(encoder,)
    )
    # A bounded window: the reader is faster than the workers, and the text that waits is held in memory.
    window: deque[tuple[Future[Tokens], int]] = deque()
    try:
        for batch, position in batches:
            window.append((pool.submit(_encode, batch), position))
            if len(window) > 2 * workers:
                future, position = window.popleft()
                yield future.result(), position
        for future, position in window:
            yield future.result(), position
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a tokenising process died: for lack of memory (try a smaller data.prepare_workers), or because the "
            "program that called prepare cannot be imported again (guard it with if __name__ == '__main__')"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker_encoder: Encoder


def _encode(batch: list[Piece]) -> Tokens:
    return _worker_encoder(batch)


def _start_worker(encoder: tuple[Path, int, int]) -> None:
    global _worker_encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends this one
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _worker_encoder = Encoder(*encoder)


def _die_with_parent() -> None:
    """End this process when its parent is gone: a killed parent leaves its workers waiting for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
