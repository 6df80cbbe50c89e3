import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bertlab.data.files import file_format, find_files, read_pieces, text_chunks
from bertlab.errors import UserError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the zstd command does
}


def read(path, document="file", text_field="text"):
    """The documents of a file, whole."""
    documents, parts = [], []
    with path.open("rb") as raw:
        for piece in read_pieces(raw, path, document=document, text_field=text_field):
            parts.append(piece.text)
            if piece.ends_document:
                documents.append("".join(parts))
                parts = []
    return documents


def write(path, content):
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(COMPRESS[file_format(path)[1]](data))
    return path


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize(
    ("extension", "content", "documents"),
    [
        (".txt", "one\ntwo\n", ["one\ntwo\n"]),
        (".md", "# one\n", ["# one\n"]),
        (".jsonl", '{"text": "one"}\n\n{"text": "t\\u00e4\\n"}\n{"text": null}\n', ["one", "tä\n"]),
        (".csv", 'id,text\n1,one\n2,"t""wo\n, lines"\n\n', ["one", 't"wo\n, lines']),
    ],
)
def test_every_format_in_every_compression(tmp_path, extension, compression, content, documents):
    assert read(write(tmp_path / f"file{extension}{compression}", content)) == documents


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["one", None, "two\r\nlines"], "number": [1, 2, 3]})
    parquet.write_table(table, path, row_group_size=2)
    assert read(path) == ["one", "two\nlines"]
    with pytest.raises(UserError, match=r"a\.parquet: no field body .*text, number"):
        read(path, text_field="body")
    with pytest.raises(UserError, match="the field number holds a int, not text"):
        read(path, text_field="number")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a\.parquet: broken \.parquet"):
        read(path)


@pytest.mark.parametrize(
    ("document", "documents"),
    [
        ("file", ["a\u2028b\x85c\n\n \nd\ne\x1c\x0bf\n"]),
        ("line", ["a\u2028b\x85c", " ", "d", "e\x1c\x0bf"]),
        ("block", ["a\u2028b\x85c", "d\ne\x1c\x0bf\n"]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_end_at_newlines_alone(tmp_path, document, documents, newline):
    text = "a\u2028b\x85c\n\n \nd\ne\x1c\x0bf\n".replace("\n", newline)
    assert read(write(tmp_path / "a.txt", text), document=document) == documents


@given(
    text=st.text(alphabet="aä€😀\r\n\u2028", max_size=30),
    cuts=st.lists(st.integers(0, 100), max_size=6),
    bom=st.booleans(),
)
def test_decoding_does_not_depend_on_the_chunks(text, cuts, bom):
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]
    assert "".join(text_chunks(chunks, Path("a.txt"))) == text.replace("\r\n", "\n").replace("\r", "\n")


@given(before=st.text(alphabet="aä€😀", max_size=12), after=st.binary(max_size=4), size=st.integers(1, 9))
def test_undecodable_byte_is_named_by_its_offset(before, after, size):
    data = before.encode() + b"\xff" + after
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    if data[:2] == b"\xff\xfe":
        with pytest.raises(UserError, match="UTF-16"):
            list(text_chunks([data], Path("a.txt")))
        return
    with pytest.raises(UserError, match=rf"^a\.txt: byte {len(before.encode())} \(0xff\).*latin-1"):
        list(text_chunks(chunks, Path("a.txt")))


def test_offset_counts_decompressed_bytes(tmp_path):
    data = b"x" * 3_000_000 + "é".encode("latin-1") + b" and more"
    with pytest.raises(UserError, match=r"byte 3000000 \(0xe9\)"):
        read(write(tmp_path / "a.txt.gz", data))


def test_character_cut_off_at_the_end(tmp_path):
    with pytest.raises(UserError, match=r"byte 2 \(0xe2\)"):
        read(write(tmp_path / "a.txt", b"ab\xe2\x82"))


def test_utf16(tmp_path):
    with pytest.raises(UserError, match=r"a\.txt: byte 0: this is UTF-16"):
        read(write(tmp_path / "a.txt", "text".encode("utf-16")))


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "garbled", "plain"])
def test_broken_compressed_files(tmp_path, compression, damage):
    data = bytearray(COMPRESS[compression](os.urandom(200_000).hex().encode()))
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "garbled":
        data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    else:
        data = b"just text"
    path = tmp_path / f"a.txt{compression}"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"a\.txt{compression}: (broken|byte)"):
        read(path)


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz", ".zst"])
def test_concatenated_compressed_files(tmp_path, compression):
    path = tmp_path / f"a.txt{compression}"
    path.write_bytes(COMPRESS[compression](b"one ") + COMPRESS[compression](b"two"))
    assert read(path) == ["one two"]


def test_jsonl_errors_name_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    for content, message in (
        ('{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not a line of JSON: .* column"),
        ('{"text": "a", "n": ' + "1" * 5000 + "}\n", r"a\.jsonl:1: not a line of JSON that can be read: .*digits"),
        ('{"text": ' + "[" * 100_000 + "\n", r"a\.jsonl:1: not a line of JSON that can be read: .*recursion"),
        ('{"text": "a"}\n\n["a"]\n', r"a\.jsonl:3: a JSON object is needed, this is a list"),
        ('{"body": "a", "id": 1}\n', r"a\.jsonl:1: no field text \(data\.text_field\); the fields are: body, id"),
        ('{"text": 12}\n', r"a\.jsonl:1: the field text holds a int, not text"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            read(path)


def test_jsonl_half_of_a_surrogate_pair(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud800b \\ud83d\\ude00"}\n')
    assert read(path) == ["a\ufffdb 😀"]


def test_jsonl_long_line(tmp_path):
    text = "word " * 700_000
    assert read(write(tmp_path / "a.jsonl", json.dumps({"text": text}))) == [text]


def test_csv_errors_name_the_line(tmp_path):
    path = tmp_path / "a.csv"
    for content, message in (
        ("id,body\n1,a\n", r"a\.csv:1: no field text \(data\.text_field\); the fields are: id, body"),
        ("id,text\n1,a\n2\n", r"a\.csv:3: 1 fields, but text is field 2"),
        ('id,text\n1,"never closed\n2,b\n', r"a\.csv:\d+: not a line of CSV: unexpected end of data"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            read(path)


def test_csv_field_above_the_default_limit(tmp_path):
    text = "word " * 100_000
    assert read(write(tmp_path / "a.csv", f'text\n"{text}"\n')) == [text]


def test_find_files(tmp_path, monkeypatch):
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "a[1].txt", "a1.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "folder.txt").mkdir()

    def names(*patterns):
        return [path.relative_to(tmp_path).as_posix() for path in find_files(list(patterns), "data.train_files")]

    assert names(f"{tmp_path}/**/*.txt") == ["a.txt", "a1.txt", "a[1].txt", "b.txt", "deep/er/c.txt"]
    assert names(f"{tmp_path}/b.txt", f"{tmp_path}/?.txt") == ["b.txt", "a.txt"]
    assert names(f"{tmp_path}/a[1].txt") == ["a[1].txt"]  # as it stands, not the glob that finds a1.txt
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("~/b.txt", "~/deep/**/*") == ["b.txt", "deep/er/c.txt"]
    monkeypatch.chdir(tmp_path)
    assert find_files(["*.txt"], "data.train_files")[0] == Path("a.txt")


def test_find_files_errors(tmp_path):
    (tmp_path / "a.pdf").write_text("x")
    (tmp_path / "a.parquet.gz").write_text("x")
    (tmp_path / "noext").write_text("x")
    for pattern, message in (
        ("none/*.txt", r"data\.train_files: this glob finds no files: .*none/\*\.txt"),
        ("none.txt", r"data\.train_files: no such file: .*none\.txt"),
        ("", r"is a folder: name its files, .*/\*\*/\*\.txt"),
        ("a.pdf", r"a\.pdf: unknown extension; the known ones are \.txt \.md \.jsonl \.csv \.parquet.*\.zst"),
        ("a.parquet.gz", "parquet plain only"),
        ("noext", "unknown extension"),
        ("*", "and 2 more: unknown extension"),
        ("x" * 300, "too long"),
    ):
        with pytest.raises(UserError, match=message):
            find_files([f"{tmp_path}/{pattern}"], "data.train_files")


def test_parquet_with_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "a.parquet"
    column = pyarrow.array([b"good", b"\xff\xfe"]).cast(pyarrow.string(), safe=False)
    parquet.write_table(pyarrow.table({"text": column}), path)
    with pytest.raises(UserError, match=r"a\.parquet: the column text holds bytes that are not UTF-8"):
        read(path)
