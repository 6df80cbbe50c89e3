import os
import tempfile
from pathlib import Path

import pytest

from bertlab.data.config import DataConfig, KjvConfig, TextConfig
from bertlab.data.corpus import corpora
from bertlab.errors import UserError


def documents(corpus):
    found, parts = [], []
    for piece in corpus.documents():
        parts.append(piece.text)
        if piece.ends_document:
            found.append("".join(parts))
            parts = []
    return found


def test_kjv_has_a_document_for_each_chapter():
    train, val = corpora(KjvConfig())
    chapters, held_out = documents(train), documents(val)
    assert len(chapters) + len(held_out) == 1189
    assert len(held_out) == 4 + 4 + 16 + 5  # Ruth, Jonah, Mark, James
    assert chapters[0].startswith(
        "In the beginning God created the heaven and the earth.\nAnd the earth was without form"
    )
    assert held_out[0].startswith("Now it came to pass in the days when the judges ruled")
    assert train.position == train.size_bytes > 3_900_000
    assert train.fingerprint() != val.fingerprint()
    assert train.fingerprint() == corpora(KjvConfig())[0].fingerprint()


def test_kjv_books():
    train, val = corpora(KjvConfig(val_books=[]))
    assert val is None
    assert len(documents(train)) == 1189
    with pytest.raises(UserError, match=r"data\.val_books: no book is named Judith; the books are: Genesis, Exodus"):
        corpora(KjvConfig(val_books=["Ruth", "Judith"]))
    with pytest.raises(UserError, match="the books are") as caught:
        corpora(KjvConfig(val_books=["none"]))
    every_book = str(caught.value).split("the books are: ")[1].split(", ")
    assert len(every_book) == 66
    with pytest.raises(UserError, match="holds out every book"):
        corpora(KjvConfig(val_books=every_book))


def test_text_files(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.md").write_text("three")
    (tmp_path / "val.txt").write_text("held out")
    config = TextConfig(train_files=[f"{tmp_path}/*"], val_files=[f"{tmp_path}/val.txt"], document="block")
    train, val = corpora(config)
    assert documents(train) == ["one", "two\n", "three"]  # without the held-out file, which the glob finds too
    assert documents(val) == ["held out"]
    assert train.position == train.size_bytes == 14
    assert "and 1 more" in train.name
    assert corpora(TextConfig(train_files=[f"{tmp_path}/a.txt"]))[1] is None


def test_held_out_files_must_not_be_all(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(UserError, match="none is left to train on"):
        corpora(TextConfig(train_files=[f"{tmp_path}/*"], val_files=[f"{tmp_path}/a.txt"]))


def test_fingerprint_follows_content_and_read_options(tmp_path):
    def fingerprint(**options):
        options.setdefault("train_files", [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"])
        return corpora(TextConfig(**options))[0].fingerprint()

    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint(document="line") != first
    assert fingerprint(text_field="body") != first
    assert fingerprint(train_files=[f"{tmp_path}/b.txt", f"{tmp_path}/a.txt"]) != first
    (tmp_path / "b.txt").rename(tmp_path / "c.txt")
    assert fingerprint(train_files=[f"{tmp_path}/a.txt", f"{tmp_path}/c.txt"]) == first
    (tmp_path / "c.txt").rename(tmp_path / "b.txt")
    status = (tmp_path / "b.txt").stat()
    (tmp_path / "b.txt").write_text("twO")
    os.utime(tmp_path / "b.txt", ns=(status.st_atime_ns, status.st_mtime_ns))  # same size and time, other bytes
    assert fingerprint() != first


def test_empty_files(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("two")
    with pytest.raises(UserError, match=r"data\.train_files .*no text: .*a\.txt is empty"):
        corpora(TextConfig(train_files=[f"{tmp_path}/a.txt"]))
    train, _ = corpora(TextConfig(train_files=[f"{tmp_path}/*.txt"]))
    assert documents(train) == ["two"]
    assert "a.txt is empty" in caplog.text


def test_file_that_vanishes_or_changes(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    train, _ = corpora(TextConfig(train_files=[f"{tmp_path}/a.txt"]))
    (tmp_path / "a.txt").write_text("one and more")
    with pytest.raises(UserError, match=r"a\.txt: changed while it was being read"):
        documents(train)
    (tmp_path / "a.txt").unlink()
    for use in (documents, lambda corpus: corpus.fingerprint()):
        with pytest.raises(UserError, match=r"a\.txt: cannot be opened: No such file"):
            use(train)


def test_file_without_permission():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o755)
        path = Path(folder, "a.txt")
        path.write_text("one")
        path.chmod(0)
        train, _ = corpora(TextConfig(train_files=[str(path)]))
        user = os.geteuid()
        if user == 0:  # root may read everything
            os.seteuid(65534)
        try:
            with pytest.raises(UserError, match=r"a\.txt: cannot be opened: Permission denied"):
                documents(train)
        finally:
            os.seteuid(user)


def test_unknown_source():
    with pytest.raises(TypeError, match="no corpus for a DataConfig"):
        corpora(DataConfig())
