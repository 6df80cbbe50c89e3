import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertlab.data.shards import _FLUSH_TOKENS, ShardWriter, TokenShards, token_dtype


def write(folder, stretches, *, dtype=np.uint16, shard_tokens=16):
    writer = ShardWriter(folder, np.dtype(dtype), shard_tokens=shard_tokens)
    for token_ids, word_starts, document_ends in stretches:
        writer.append(np.array(token_ids, dtype), np.array(word_starts, bool), np.array(document_ends, np.int64))
    writer.close()
    return TokenShards(folder)


STRETCHES = st.lists(st.lists(st.tuples(st.integers(0, 65_535), st.booleans(), st.booleans()), max_size=40), max_size=5)


@given(stretches=STRETCHES, window=st.tuples(st.integers(0, 200), st.integers(0, 200)))
def test_what_is_written_is_read(tmp_path_factory, stretches, window):
    shards = write(
        tmp_path_factory.mktemp("shards"),
        [
            ([token for token, _, _ in part], [word for _, word, _ in part], np.flatnonzero([e for *_, e in part]) + 1)
            for part in stretches
        ],
    )
    stream = [entry for part in stretches for entry in part]
    assert shards.num_tokens == len(stream)
    assert shards.document_ends.tolist() == [place + 1 for place, (*_, end) in enumerate(stream) if end]
    assert shards.num_documents == len(shards.document_ends)
    start, stop = sorted(min(bound, len(stream)) for bound in window)
    token_ids, word_starts = shards.token_ids(start, stop), shards.word_starts(start, stop)
    assert token_ids.dtype == np.int32
    assert word_starts.dtype == bool
    assert token_ids.tolist() == [token for token, _, _ in stream[start:stop]]
    assert word_starts.tolist() == [word for _, word, _ in stream[start:stop]]


def test_stretches_longer_than_the_buffer(tmp_path):
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 100_000, size) for size in (3, _FLUSH_TOKENS + 5, 7, _FLUSH_TOKENS // 2)]
    shards = write(
        tmp_path, [(part, part % 3 == 0, [len(part)]) for part in parts], dtype=np.uint32, shard_tokens=1 << 16
    )
    stream = np.concatenate(parts)
    assert len(list(tmp_path.glob("tokens-*.bin"))) == 7
    assert np.array_equal(shards.token_ids(0, len(stream)), stream)
    assert np.array_equal(shards.word_starts(0, len(stream)), stream % 3 == 0)
    assert shards.document_ends.tolist() == np.cumsum([len(part) for part in parts]).tolist()


def test_token_dtype():
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32


def test_ends_of_the_stream(tmp_path):
    shards = write(tmp_path, [([5, 6, 3], [True, False, True], [3])])
    assert shards.token_ids(3, 3).tolist() == []
    assert shards.word_starts(1, 1).tolist() == []
    for start, stop in ((0, 4), (-1, 2), (2, 1)):
        with pytest.raises(IndexError, match="not within a stream of 3 tokens"):
            shards.token_ids(start, stop)
        with pytest.raises(IndexError, match="not within"):
            shards.word_starts(start, stop)


def test_a_copy_for_another_process_is_small(tmp_path):
    shards = write(tmp_path, [(np.arange(10_000), np.ones(10_000), [10_000])], shard_tokens=1 << 10)
    data = pickle.dumps(shards)
    assert len(data) < 1000
    assert pickle.loads(data).token_ids(9_000, 9_003).tolist() == [9_000, 9_001, 9_002]
