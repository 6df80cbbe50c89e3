"""Reading files: finding them, decompressing, decoding, and taking the documents out of each format."""

import bz2
import codecs
import csv
import glob
import gzip
import hashlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

import zstandard

from bertlab.data.pieces import Piece, pieces_of, pieces_of_chunks
from bertlab.errors import UserError, user_path

FORMATS = (".txt", ".md", ".jsonl", ".csv", ".parquet")
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
SEPARATORS = {"file": None, "line": re.compile("\n"), "block": re.compile(r"\n(?:[^\S\n]*\n)+")}

_CHUNK_BYTES = 1 << 20
# A decompressor returns all that a chunk unfolds to at once: small chunks keep that bounded.
_ZST_CHUNK_BYTES = 1 << 16
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def find_files(patterns: list[str], override: str) -> list[Path]:
    """The files that paths and globs name, each once; those of a glob in sorted order.

    A string that exists as a file is that file, whatever characters it holds. ``~`` is expanded; ``**`` crosses
    folders; folders are left out.

    Args:
        patterns: paths and globs.
        override: name of the override they come from, for the messages.

    Raises:
        UserError: when a path does not exist or is a folder, a glob finds nothing, or a format is not known.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        try:
            for path in _matches(pattern, override):
                found.setdefault(str(path.resolve()), path)
        except OSError as error:
            raise UserError(f"{override}: {pattern}: {error.strerror}") from error
    unknown = [path for path in found.values() if file_format(path)[0] not in FORMATS]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(
            f"{override}: {unknown[0]}{more}: unknown extension; "
            f"the known ones are {' '.join(FORMATS)}, each plain or with {' '.join(COMPRESSIONS)} (.parquet plain only)"
        )
    return list(found.values())


def _matches(pattern: str, override: str) -> list[Path]:
    literal = user_path(pattern, override)
    if literal.is_file():
        return [literal]
    if literal.is_dir():
        raise UserError(f"{override}: {pattern} is a folder: name its files, {pattern.rstrip('/')}/**/*.txt")
    matches = [path for path in map(Path, sorted(glob.glob(str(literal), recursive=True))) if path.is_file()]
    if not matches:
        what = "this glob finds no files" if glob.has_magic(pattern) else "no such file"
        raise UserError(f"{override}: {what}: {pattern} (relative to {Path.cwd()})")
    return matches


def file_format(path: Path) -> tuple[str, str]:
    """Extension of the format and of the compression ("" for none): ``a.txt.gz`` gives (".txt", ".gz")."""
    compression = path.suffix.lower()
    if compression not in COMPRESSIONS:
        return compression, ""
    extension = Path(path.stem).suffix.lower()
    return ("", "") if extension == ".parquet" else (extension, compression)


def open_file(path: Path) -> io.BufferedReader:
    """The file, opened for binary reading.

    Raises:
        UserError: when it cannot be opened.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be opened: {error.strerror}") from error


def file_digest(path: Path) -> str:
    """Hash of a file's bytes.

    Raises:
        UserError: when it cannot be read.
    """
    with open_file(path) as file:
        try:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def read_pieces(raw: BinaryIO, path: Path, *, document: str, text_field: str) -> Iterator[Piece]:
    """The documents of one file, as pieces.

    Args:
        raw: the file, opened for binary reading.
        path: its name, for the messages, and for its extensions.
        document: ``file``, ``block`` or ``line``: what a document is in a text file.
        text_field: column or key of the text in a file of records.

    Raises:
        UserError: when the content is broken; the message names the file and the line or byte offset.
    """
    extension, compression = file_format(path)
    if extension == ".parquet":
        yield from _parquet_pieces(raw, path, text_field)
        return
    chunks = text_chunks(_byte_chunks(raw, path, compression), path)
    if extension in (".txt", ".md"):
        yield from pieces_of_chunks(chunks, SEPARATORS[document])
    elif extension == ".jsonl":
        yield from _jsonl_pieces(chunks, path, text_field)
    else:
        yield from _csv_pieces(chunks, path, text_field)


def text_chunks(chunks: Iterable[bytes], path: Path) -> Iterator[str]:
    r"""Decode UTF-8; drop a byte-order mark; turn ``\r\n`` and ``\r`` into ``\n``.

    Raises:
        UserError: at bytes that are not UTF-8, with their offset in the (decompressed) content.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    consumed = 0
    first = True
    for chunk in chunks:
        if first and chunk.startswith(_UTF16_MARKS):
            raise UserError(f"{path}: byte 0: this is UTF-16, not UTF-8: convert it, iconv -f UTF-16 -t UTF-8")
        first = False
        try:
            text = decoder.decode(chunk)
        except UnicodeDecodeError as error:
            # The decoder's input is what it had kept of the chunk before, followed by this chunk.
            raise _undecodable(path, consumed + len(chunk) - len(error.object) + error.start, error) from None
        consumed += len(chunk)
        yield newlines.decode(text)
    try:
        yield newlines.decode(decoder.decode(b"", final=True), final=True)
    except UnicodeDecodeError as error:
        raise _undecodable(path, consumed - len(error.object) + error.start, error) from None


def _undecodable(path: Path, offset: int, error: UnicodeDecodeError) -> UserError:
    return UserError(
        f"{path}: byte {offset} (0x{error.object[error.start]:02x}) is not UTF-8 ({error.reason}): "
        "convert the file; if it is in latin-1, iconv -f LATIN1 -t UTF-8"
    )


def _byte_chunks(raw: BinaryIO, path: Path, compression: str) -> Iterator[bytes]:
    try:
        if compression == ".zst":
            yield from _zst_chunks(raw)
            return
        stream = _decompressed(raw, compression)
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk
    except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise UserError(f"{path}: broken {compression} file: {error}") from error
    except OSError as error:
        # gzip and bz2 report bad content as an OSError without a number; one with a number comes from the disk.
        problem = f"broken {compression} file: {error}" if error.errno is None else f"cannot be read: {error.strerror}"
        raise UserError(f"{path}: {problem}") from error


def _decompressed(raw: BinaryIO, compression: str) -> gzip.GzipFile | IO[bytes]:
    match compression:
        case ".gz":
            return gzip.open(raw)
        case ".bz2":
            return bz2.open(raw)
        case ".xz":
            return lzma.open(raw)
        case _:
            return raw


def _zst_chunks(raw: BinaryIO) -> Iterator[bytes]:
    # By hand, because zstandard's own reader takes a truncated file for a complete one.
    decompressor = None
    while chunk := raw.read(_ZST_CHUNK_BYTES):
        while chunk:
            decompressor = decompressor or zstandard.ZstdDecompressor().decompressobj()
            if data := decompressor.decompress(chunk):
                yield data
            chunk = b""
            if decompressor.eof:
                chunk, decompressor = decompressor.unused_data, None
    if decompressor is not None:
        raise EOFError("it ends in the middle of a frame")


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    parts: list[str] = []
    for chunk in chunks:
        *complete, rest = chunk.split("\n")
        if complete:
            complete[0] = "".join([*parts, complete[0]])
            parts = []
            yield from complete
        parts.append(rest)
    if last := "".join(parts):
        yield last


def _jsonl_pieces(chunks: Iterable[str], path: Path, text_field: str) -> Iterator[Piece]:
    for number, line in enumerate(_lines(chunks), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{place}: not a line of JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits; nesting without end
            raise UserError(f"{place}: not a line of JSON that can be read: {error}") from None
        if not isinstance(record, dict):
            raise UserError(f"{place}: a JSON object is needed, this is a {type(record).__name__}")
        if text_field not in record:
            raise UserError(missing_field(place, text_field, list(record)))
        text = record[text_field]
        if isinstance(text, str) and "\\ud" in line.lower():
            # JSON can spell half of a surrogate pair, which is no character.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield from _record_pieces(text, place, text_field)


def _csv_pieces(chunks: Iterable[str], path: Path, text_field: str) -> Iterator[Piece]:
    csv.field_size_limit(2**31 - 1)  # the default, 131,072 characters, is less than a long document
    # With strict, a quote that is never closed is an error instead of a document made of the rest of the file.
    reader = csv.reader((line + "\n" for line in _lines(chunks)), strict=True)
    try:
        header = next(reader, [])
        if text_field not in header:
            raise UserError(missing_field(f"{path}:1", text_field, header))
        column = header.index(text_field)
        for row in reader:
            if not row:
                continue
            if len(row) <= column:
                raise UserError(
                    f"{path}:{reader.line_num}: {len(row)} fields, but {text_field} is field {column + 1} of the header"
                )
            yield from _record_pieces(row[column], path, text_field)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not a line of CSV: {error}") from None


def _parquet_pieces(raw: BinaryIO, path: Path, text_field: str) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(raw, buffer_size=_CHUNK_BYTES, pre_buffer=False)
        if text_field not in file.schema_arrow.names:
            raise UserError(missing_field(str(path), text_field, file.schema_arrow.names))
        for batch in file.iter_batches(batch_size=64, columns=[text_field], use_threads=False):
            for text in batch.column(0).to_pylist():
                yield from _record_pieces(text, path, text_field)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the column {text_field} holds bytes that are not UTF-8: {error}") from None
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: broken .parquet file: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: broken .parquet file, or one that cannot be read: {error}") from error


def _record_pieces(text: object, place: str | Path, text_field: str) -> Iterator[Piece]:
    if text is None:
        return
    if not isinstance(text, str):
        raise UserError(f"{place}: the field {text_field} holds a {type(text).__name__}, not text")
    yield from pieces_of(text.replace("\r\n", "\n").replace("\r", "\n"))


def missing_field(place: str, text_field: str, fields: list[str]) -> str:
    """The message for a record without the text field."""
    return f"{place}: no field {text_field} (data.text_field); the fields are: {', '.join(fields) or 'none'}"
