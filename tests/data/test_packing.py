"""Rows: no token lost, none doubled, and the counts that the sampler relies on."""

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertlab.data import packing
from bertlab.data.packing import Rows, build_rows
from bertlab.data.shards import ShardWriter, TokenShards
from bertlab.errors import UserError

PAD, UNK, CLS, SEP, MASK, FIRST_ORDINARY, VOCAB = 0, 1, 2, 3, 4, 5, 40
TOKENIZER = SimpleNamespace(cls_id=CLS, sep_id=SEP, special_ids=(PAD, UNK, CLS, SEP, MASK), vocab_size=VOCAB)


def shards_of(documents: list[np.ndarray], word_starts: list[np.ndarray]) -> TokenShards:
    """The stream on disk, in files of 16 tokens so that rows reach across them."""
    with TemporaryDirectory() as folder:
        writer = ShardWriter(Path(folder), np.dtype(np.uint16), shard_tokens=16)
        for document, starts in zip(documents, word_starts, strict=True):
            writer.append(np.append(document, SEP), np.append(starts, True), np.array([len(document) + 1]))
        writer.close()
        return TokenShards(folder)  # the maps outlive the names of the files


@st.composite
def documents_and_starts(draw: st.DrawFn) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Documents of any length from 1, with [UNK] and literal special tokens in them, and where their words start."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    documents = [generator.integers(0, VOCAB, size) for size in sizes]
    starts = [generator.random(size) < 0.6 for size in sizes]
    for first in starts:
        first[0] = True
    return documents, starts


def rows_of(stream: TokenShards, packing: str, sequence_length: int) -> Rows:
    return build_rows(stream, packing=packing, sequence_length=sequence_length, tokenizer=TOKENIZER)


def pieces(rows: Rows) -> list[list[int]]:
    """What stands between [CLS] and [SEP] of every row."""
    found = []
    for row in range(len(rows)):
        ids, _, _ = rows.read(row)
        assert (ids[0], ids[-1]) == (CLS, SEP)
        found.append(ids[1:-1].tolist())
    return found


@given(documents_and_starts(), st.integers(3, 30))
@settings(max_examples=200, deadline=None)
def test_joined_rows_are_the_stream_without_its_last_separator(corpus: tuple, sequence_length: int) -> None:
    documents, _ = corpus
    stream = shards_of(*corpus)
    capacity = sequence_length - 2
    if stream.num_tokens - 1 < capacity:
        with pytest.raises(UserError, match=f"has {stream.num_tokens - 1} tokens"):
            rows_of(stream, "join", sequence_length)
        return
    found = pieces(rows_of(stream, "join", sequence_length))
    assert sum(found, []) + [SEP] == sum(([*document, SEP] for document in documents), [])
    assert all(len(piece) == capacity for piece in found[:-1])
    assert 1 <= len(found[-1]) <= capacity


@given(documents_and_starts(), st.integers(3, 30))
@settings(max_examples=200, deadline=None)
def test_document_rows_are_the_documents_cut(corpus: tuple, sequence_length: int) -> None:
    documents, _ = corpus
    capacity = sequence_length - 2
    expected = [
        document[start : start + capacity].tolist()
        for document in documents
        for start in range(0, len(document), capacity)
    ]
    assert pieces(rows_of(shards_of(*corpus), "none", sequence_length)) == expected


@given(documents_and_starts(), st.integers(3, 30), st.sampled_from(["join", "none"]), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_rows_know_their_lengths_and_maskable_tokens(
    corpus: tuple, sequence_length: int, how: str, window: int
) -> None:
    stream = shards_of(*corpus)
    if stream.num_tokens - 1 < sequence_length - 2:
        how = "none"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_WINDOW_TOKENS", window)  # the counts must not depend on where windows end
        rows = rows_of(stream, how, sequence_length)
    assert rows.lengths.dtype == rows.maskable.dtype == np.int32
    assert len(rows) == len(rows.lengths) == len(rows.maskable)
    for row in range(len(rows)):
        ids, maskable, _ = rows.read(row)
        assert len(ids) == len(maskable) == rows.lengths[row]
        assert maskable.tolist() == [token >= FIRST_ORDINARY for token in ids]
        assert rows.maskable[row] == maskable.sum()


@given(documents_and_starts(), st.integers(3, 30), st.sampled_from(["join", "none"]))
@settings(max_examples=200, deadline=None)
def test_word_ids_tell_the_words_of_a_row_apart(corpus: tuple, sequence_length: int, how: str) -> None:
    documents, starts = corpus
    stream = shards_of(*corpus)
    if stream.num_tokens - 1 < sequence_length - 2:
        how = "none"
    # The number of the word in the whole stream, for every token in the order of the rows.
    word, in_stream = 0, []
    for document_starts in starts:
        for start in [*document_starts, True]:
            word += bool(start)
            in_stream.append(word)
    if how == "none":
        in_stream = [number for place, number in enumerate(in_stream) if place + 1 not in stream.document_ends]
    place = 0
    rows = rows_of(stream, how, sequence_length)
    for row in range(len(rows)):
        _, maskable, word_ids = rows.read(row)
        assert ((word_ids == -1) == ~maskable).all()
        numbers = np.array(in_stream[place : place + len(word_ids) - 2])
        place += len(numbers)
        inner, ordinary = word_ids[1:-1], maskable[1:-1]
        same_word = numbers[ordinary][:, None] == numbers[ordinary]
        assert ((inner[ordinary][:, None] == inner[ordinary]) == same_word).all()


def test_a_text_without_tokens_is_refused() -> None:
    empty = shards_of([], [])
    for how in ("join", "none"):
        with pytest.raises(UserError, match="the held-out text has no tokens"):
            build_rows(empty, packing=how, sequence_length=8, tokenizer=TOKENIZER, split="held-out")


def test_too_short_a_text_says_how_many_tokens_it_has_and_what_to_do() -> None:
    stream = shards_of([np.array([5, 6, 7]), np.array([8])], [np.ones(3, bool), np.ones(1, bool)])
    with pytest.raises(UserError) as error:
        build_rows(stream, packing="join", sequence_length=128, tokenizer=TOKENIZER, split="validation")
    for part in ("validation text has 5 tokens", "126", "data.sequence_length=128", "data.packing=none", "more text"):
        assert part in str(error.value)
    assert pieces(rows_of(stream, "none", 128)) == [[5, 6, 7], [8]]
    assert pieces(rows_of(stream, "join", 7)) == [[5, 6, 7, SEP, 8]]


def test_rows_reach_another_process(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, np.dtype(np.uint16))
    writer.append(np.append(np.arange(5, 30), SEP), np.ones(26, bool), np.array([26]))
    writer.close()
    rows = rows_of(TokenShards(tmp_path), "join", 9)
    copy = pickle.loads(pickle.dumps(rows))
    assert pieces(copy) == pieces(rows) == [list(range(first, min(first + 7, 30))) for first in range(5, 30, 7)]
