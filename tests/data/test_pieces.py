import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertlab.data import pieces
from bertlab.data.pieces import Piece, find_break, pieces_of, pieces_of_chunks, split_at_breaks

TEXT = st.text(alphabet="ab.  \n\t\u3000\u2028\x1c", max_size=80)


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_CHARS", 8)
        yield


def whole(stream):
    documents, parts = [], []
    for piece in stream:
        parts.append(piece.text)
        if piece.ends_document:
            documents.append("".join(parts))
            parts = []
    assert not parts, "the last document has no end"
    return documents


def test_break_is_where_white_space_begins():
    assert find_break("ab \n cd", 0, 7) == 2
    assert find_break("ab \n cd", 2, 7) == 2
    assert find_break("ab \n cd", 3, 7) == -1
    assert find_break("\n\nab", 0, 4) == -1
    assert find_break("ab\u3000cd", 0, 5) == -1


@given(text=TEXT, size=st.integers(1, 20))
def test_excerpts_join_to_the_text_and_are_cut_at_breaks_alone(text, size):
    excerpts = list(split_at_breaks(text, size))
    assert "".join(excerpts) == text
    for left, right in zip(excerpts, excerpts[1:], strict=False):
        assert not left[-1].isspace() or left[-1] == "\x1c"
        assert right[0].isspace()
        assert right[0] != "\x1c"


@given(text=TEXT)
def test_pieces_of_join_to_the_text_and_stay_small(text):
    stream = list(pieces_of(text))
    assert whole(stream) == [text]
    assert all(len(piece.text) <= 16 for piece in stream)


def test_text_without_white_space_is_cut_all_the_same():
    assert [len(piece.text) for piece in pieces_of("x" * 50)] == [16, 16, 16, 2]


@given(text=TEXT, cuts=st.lists(st.integers(0, 80)), separator=st.sampled_from([None, "\n", r"\n(?:[^\S\n]*\n)+"]))
def test_chunks_do_not_change_the_documents(text, cuts, separator):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]
    pattern = re.compile(separator) if separator else None
    stream = list(pieces_of_chunks(chunks, pattern))
    expected = [text] if pattern is None else pattern.split(text)
    if separator in (None, "\n"):
        assert whole(stream) == [document for document in expected if document]
    else:  # a separator that a chunk cuts leaves a line feed at the edge of a document
        assert [d.strip() for d in whole(stream) if d.strip()] == [d.strip() for d in expected if d.strip()]
    assert all(len(piece.text) <= 16 for piece in stream)


def test_long_document_between_short_ones():
    chunks = ["one\n", "word " * 3, "word " * 8, "end\nlast"]
    stream = list(pieces_of_chunks(chunks, re.compile("\n")))
    assert stream[0] == Piece("one", True)
    assert whole(stream) == ["one", "word " * 11 + "end", "last"]
    assert len(stream) > 4
