"""Corpora and their documents as streams of pieces, so that no document has to be held in memory whole."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PIECE_CHARS = 256 * 1024

# The start of a run of white space that holds a blank, a tab or a newline. The pre-tokenizers of the tokenizers that we
# train start a new word there, or earlier in the text, so the tokens on both sides are those of the uncut text. A cut
# after the run would not do: byte-level BPE keeps the last blank with the word that follows. (A loaded tokenizer that
# puts a blank in front of every text has one token more where a piece, of 256 Ki characters, begins at a newline.)
# To Python alone the four separators from U+001C on are white space.
_BREAK = re.compile(r"(?<=[\S\x1c-\x1f])[^\S\x1c-\x1f]*?[ \t\n]")


class Piece(NamedTuple):
    """A stretch of a document.

    Attributes:
        text: the characters; the pieces of a document, joined, are the document.
        ends_document: whether the document ends here.
    """

    text: str
    ends_document: bool


class Corpus(ABC):
    """The text of one split.

    Attributes:
        name: what messages and the progress bar call it.
        size_bytes: size of its source in bytes, as it is stored; None when that is not known beforehand.
        position: how many of those bytes the iteration that began last has read.
        streamed: whether it is downloaded while it is read, so that reading it twice is expensive.
    """

    streamed = False
    name: str
    size_bytes: int | None
    position: int

    @abstractmethod
    def documents(self) -> Iterator[Piece]:
        """The documents in a fixed order; long ones in several pieces."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of all that decides what ``documents`` gives: the contents and the read options."""


def find_break(text: str, start: int, stop: int) -> int:
    """Position of the first break (where white space begins) in ``text[start:stop]``, or -1."""
    found = _BREAK.search(text, start, stop)
    return found.start() if found else -1


def split_at_breaks(text: str, size: int) -> Iterator[str]:
    """Cut a text at breaks into excerpts of about ``size`` characters; where there is no break there is no cut."""
    start = 0
    while len(text) - start > size:
        stop = find_break(text, start + size, len(text))
        if stop < 0:
            break
        yield text[start:stop]
        start = stop
    yield text[start:]


def pieces_of(text: str) -> Iterator[Piece]:
    """One document as pieces of ``PIECE_CHARS`` to twice as many characters, cut at white space where there is any."""
    start = 0
    while len(text) - start > 2 * PIECE_CHARS:
        stop = _cut(text, start)
        yield Piece(text[start:stop], False)
        start = stop
    yield Piece(text[start:], True)


def pieces_of_chunks(chunks: Iterable[str], separator: re.Pattern[str] | None) -> Iterator[Piece]:
    """Documents of a text that arrives in chunks.

    Args:
        chunks: the text, in order, in chunks of any size.
        separator: what stands between two documents; None when the whole text is one document.

    Yields:
        The pieces of every document that is not empty.
    """
    buffer, begun = "", False
    for chunk in chunks:
        buffer += chunk
        if separator is not None:
            *complete, buffer = separator.split(buffer)
            for text in complete:
                if text or begun:
                    yield from pieces_of(text)
                begun = False
        while len(buffer) > 2 * PIECE_CHARS:
            stop = _cut(buffer, 0)
            yield Piece(buffer[:stop], False)
            buffer, begun = buffer[stop:], True
    if buffer or begun:
        yield from pieces_of(buffer)


def _cut(text: str, start: int) -> int:
    stop = find_break(text, start + PIECE_CHARS, start + 2 * PIECE_CHARS)
    return stop if stop >= 0 else start + 2 * PIECE_CHARS
