import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from bertlab.data import prepare as module
from bertlab.data.config import (
    BpeConfig,
    KjvConfig,
    PretrainedTokenizerConfig,
    TextConfig,
    UnigramConfig,
    WordPieceConfig,
)
from bertlab.data.corpus import corpora
from bertlab.data.prepare import build_shards, cache_folder, prepare
from bertlab.data.tokenizer import Tokenizer
from bertlab.data.tokenizer_training import train_on_corpus
from bertlab.errors import UserError

ROOT = Path(__file__).parents[2]
PROGRAM = """
import logging, sys
from bertlab.data.config import TextConfig, PretrainedTokenizerConfig
from bertlab.data.prepare import prepare

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    files, vocabulary, cache, workers = sys.argv[1:]
    config = TextConfig(train_files=[files], cache_dir=cache, prepare_workers=int(workers))
    prepared = prepare(config, PretrainedTokenizerConfig(path=vocabulary))
    print("torch" in sys.modules, "transformers" in sys.modules, prepared.train.folder)
"""


@pytest.fixture(scope="module")
def tokenizers():
    corpus = corpora(KjvConfig())[1]
    configs = (WordPieceConfig(vocab_size=1000), BpeConfig(vocab_size=1000), UnigramConfig(vocab_size=1000))
    return [train_on_corpus(config, corpus) for config in configs]


@pytest.fixture(scope="module")
def vocabulary(tokenizers, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizers[0].backend.save(str(path))
    return path


@pytest.fixture(scope="module")
def bible(tmp_path_factory):
    """The King James text, a chapter a file: just enough for several processes."""
    folder = tmp_path_factory.mktemp("bible")
    for number, piece in enumerate(piece for corpus in corpora(KjvConfig()) for piece in corpus.documents()):
        (folder / f"{number:05}.txt").write_text(piece.text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def reference(bible, vocabulary, tmp_path_factory):
    """Checksums of the shards that one process makes."""
    config = TextConfig(
        train_files=[f"{bible}/*.txt"], cache_dir=str(tmp_path_factory.mktemp("reference")), prepare_workers=1
    )
    return checksums(prepare(config, PretrainedTokenizerConfig(path=str(vocabulary))).train.folder)


def start(program, bible, vocabulary, cache, workers=2):
    return subprocess.Popen(
        [sys.executable, program, f"{bible}/*.txt", vocabulary, cache, str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def stream_of(shards):
    return shards.token_ids(0, shards.num_tokens), shards.word_starts(0, shards.num_tokens), shards.document_ends


def checksums(folder):
    return json.loads((folder / "manifest.json").read_text())["files"]


def expected_stream(tokenizer, texts):
    """The definition, document by document and token by token."""
    token_ids, word_starts, document_ends = [], [], []
    for text in texts:
        encoding = tokenizer.encode(text)
        if not encoding.ids:
            continue
        token_ids += [*encoding.ids, tokenizer.sep_id]
        words = encoding.word_ids
        word_starts += [True, *(left != right for left, right in zip(words, words[1:], strict=False)), True]
        document_ends.append(len(token_ids))
    return token_ids, word_starts, document_ends


LINES = st.lists(
    st.text("ab. \t\x00é王\u2028", max_size=12) | st.sampled_from(["and the light", "[MASK] [SEP] god"]), max_size=8
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, batch=st.integers(1, 20), piece=st.integers(6, 12), excerpt=st.integers(1, 8))
def test_stream_is_that_of_the_definition(tokenizers, tmp_path_factory, lines, batch, piece, excerpt):
    # What has no white space is cut only beyond twice the size of a piece, that is 12 or more.
    folder = tmp_path_factory.mktemp("stream")
    (folder / "a.txt").write_text("\n".join([*lines, "last"]), encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:  # small sizes, so that everything is cut everywhere
        patch.setattr(module, "_BATCH_CHARS", batch)
        patch.setattr(module, "_EXCERPT_CHARS", excerpt)
        patch.setattr("bertlab.data.pieces.PIECE_CHARS", piece)
        for tokenizer in tokenizers:
            corpus, _ = corpora(TextConfig(train_files=[f"{folder}/a.txt"], document="line"))
            shards = build_shards(corpus, tokenizer, folder / "cache", workers=1)
            token_ids, word_starts, document_ends = (array.tolist() for array in stream_of(shards))
            whole = ["".join(part) for part in [*lines, "last"]]
            assert (token_ids, document_ends) == expected_stream(tokenizer, whole)[::2]
            assert word_starts == expected_stream(tokenizer, whole)[1]


def test_kjv(tmp_path, caplog):
    config = KjvConfig(cache_dir=str(tmp_path))
    with caplog.at_level(logging.INFO):
        prepared = prepare(config, WordPieceConfig(vocab_size=2000))
    assert prepared.tokenizer.vocab_size == 2000
    assert (prepared.train.num_documents, prepared.val.num_documents) == (1160, 29)
    texts = [piece.text for piece in corpora(config)[1].documents()]
    token_ids, word_starts, document_ends = expected_stream(prepared.tokenizer, texts)
    assert np.array_equal(stream_of(prepared.val)[0], token_ids)
    assert np.array_equal(stream_of(prepared.val)[1], word_starts)
    assert np.array_equal(stream_of(prepared.val)[2], document_ends)
    assert f"kjv: {prepared.train.num_tokens} tokens of 1160 documents, 4.0 MB in" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        again = prepare(config, WordPieceConfig(vocab_size=2000))
    assert caplog.text == ""  # nothing is trained or tokenised twice
    assert again.tokenizer.backend.to_str() == prepared.tokenizer.backend.to_str()
    assert again.train.folder == prepared.train.folder


def test_damaged_shards_are_prepared_again(tmp_path, tokenizers, caplog):
    (tmp_path / "a.txt").write_text("And God said [MASK] there be light. " * 100)
    corpus, _ = corpora(TextConfig(train_files=[f"{tmp_path}/a.txt"]))
    first = build_shards(corpus, tokenizers[0], tmp_path, workers=1)
    before = checksums(first.folder)
    tokens = first.folder / "tokens-00000.bin"
    data = bytearray(tokens.read_bytes())
    data[1000] ^= 1
    tokens.write_bytes(data)
    again = build_shards(corpus, tokenizers[0], tmp_path, workers=1)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"{first.folder} is damaged (the checksum of tokens-00000.bin does not fit): {corpus.name} is prepared again"
    ]
    assert checksums(again.folder) == before


def test_shards_belong_to_a_corpus_and_a_tokenizer(tmp_path, tokenizers):
    (tmp_path / "a.txt").write_text("And God said [MASK] there be light.\n\nAmen")
    folders = set()
    for document in ("file", "block"):
        corpus, _ = corpora(TextConfig(train_files=[f"{tmp_path}/a.txt"], document=document))
        folders |= {build_shards(corpus, tokenizer, tmp_path, workers=1).folder for tokenizer in tokenizers}
    assert len(folders) == 6


def test_number_of_processes_does_not_show(tmp_path, bible, vocabulary, program, reference):
    process = start(program, bible, vocabulary, tmp_path, workers=3)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "%|" not in errors, "a progress bar, though nobody watches"
    torch, transformers, folder = output.splitlines()[-1].split()
    assert (torch, transformers) == ("False", "False")
    assert checksums(Path(folder)) == reference
    assert list((tmp_path / "shards").glob("*.partial")) == []


def test_two_processes_at_once_share_the_work(tmp_path, bible, vocabulary, program, reference):
    processes = [start(program, bible, vocabulary, tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sum(output.count("documents, ") for output, _ in outputs) == 1
    folders = {Path(output.splitlines()[-1].split()[-1]) for output, _ in outputs}
    assert folders == {path for path in (tmp_path / "shards").iterdir() if path.is_dir()}
    assert checksums(folders.pop()) == reference


@pytest.mark.parametrize("from_file", [True, False], ids=["without guard", "from standard input"])
def test_program_that_workers_cannot_import_fails_instead_of_hanging(tmp_path, bible, from_file):
    arguments = [bible / "*.txt", large_vocabulary(tmp_path), tmp_path / "cache", 2]
    program = PROGRAM.replace('if __name__ == "__main__":', "if True:")
    command = [sys.executable, "-"]
    if from_file:
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, tmp_path / "program.py"]
    process = subprocess.run(
        [*map(str, command), *map(str, arguments)],
        input=None if from_file else program,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 1
    assert "if __name__ == '__main__'" in process.stderr
    assert not [path for path in (tmp_path / "cache" / "shards").iterdir() if path.is_dir()]


def large_vocabulary(folder):
    """One that does not fit into the pipe to a worker."""
    path = folder / "vocab.txt"
    words = [f"word{number}" for number in range(20_000)]
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n", encoding="utf-8")
    return path


def test_killed_halfway_it_starts_clean(tmp_path, bible, vocabulary, program, reference):
    process = start(program, bible, vocabulary, tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("shards/*.partial/tokens-*.bin")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.005)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert list(tmp_path.glob("shards/*.partial"))
    # The workers notice that their parent is gone.
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
    again = start(program, bible, vocabulary, tmp_path)
    output, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert list(tmp_path.glob("shards/*.partial")) == []
    assert checksums(Path(output.splitlines()[-1].split()[-1])) == reference


def test_failure_in_the_middle_leaves_nothing(tmp_path, bible, vocabulary):
    broken = tmp_path / "zzz.txt"
    broken.write_bytes(b"good text and then \xe9")
    config = TextConfig(
        train_files=[f"{bible}/*.txt", str(broken)], cache_dir=str(tmp_path / "cache"), prepare_workers=2
    )
    with pytest.raises(UserError, match=r"zzz\.txt: byte 19 \(0xe9\)"):
        prepare(config, PretrainedTokenizerConfig(path=str(vocabulary)))
    assert [path for path in (tmp_path / "cache" / "shards").iterdir() if path.is_dir()] == []
    assert psutil.Process().children(recursive=True) == [] or all(
        "resource_tracker" in " ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)
    )


def test_no_token_at_all(tmp_path, vocabulary):
    (tmp_path / "a.txt").write_text(" \n\t\n")
    config = TextConfig(train_files=[f"{tmp_path}/a.txt"], cache_dir=str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"data\.train_files \(.*a\.txt\): no text"):
        prepare(config, PretrainedTokenizerConfig(path=str(vocabulary)))


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BERTLAB_CACHE", raising=False)
    assert cache_folder(KjvConfig()) == tmp_path / ".cache" / "bertlab"
    monkeypatch.setenv("BERTLAB_CACHE", "~/elsewhere")
    assert cache_folder(KjvConfig()) == tmp_path / "elsewhere"
    assert cache_folder(KjvConfig(cache_dir="/own")) == Path("/own")


def test_cache_that_cannot_be_written(tmp_path, vocabulary):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"data\.cache_dir: .*Not a directory"):
        prepare(KjvConfig(cache_dir=str(tmp_path / "file" / "cache")), PretrainedTokenizerConfig(path=str(vocabulary)))


@pytest.mark.parametrize("pipeline", ["byte_level", "metaspace"])
def test_a_blank_in_front_of_every_text_does_not_show_where_it_was_cut(pipeline, tokenizers, tmp_path):
    backend = tokenizers[1].backend if pipeline == "byte_level" else tokenizers[2].backend
    backend = type(backend).from_str(backend.to_str())
    backend.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=True) if pipeline == "byte_level" else pre_tokenizers.Metaspace()
    )
    text = "foo\nbar\n" * 8000
    path = tmp_path / "text.txt"
    path.write_text(text)
    corpus = corpora(TextConfig(train_files=[str(path)], document="file"))[0]
    tokenizer = Tokenizer(backend)
    shards = build_shards(corpus, tokenizer, tmp_path / "cache", workers=1)
    assert shards.num_tokens == len(tokenizer.encode(text).ids) + 1


def test_many_unknown_tokens_are_reported(tmp_path, caplog):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "known"]))
    (tmp_path / "text.txt").write_text("known " * 90 + "strange " * 10)
    config = TextConfig(train_files=[str(tmp_path / "text.txt")], cache_dir=str(tmp_path / "cache"))
    prepare(config, PretrainedTokenizerConfig(path=str(vocabulary)))
    assert "9.9 % of the tokens are unknown" in caplog.text


def test_the_tokenizer_is_checked_before_the_corpus_is_tokenised(tmp_path):
    (tmp_path / "text.txt").write_text("some words " * 90)
    config = TextConfig(train_files=[str(tmp_path / "text.txt")], cache_dir=str(tmp_path / "cache"))

    def refuse(tokenizer):
        raise UserError(f"{tokenizer.vocab_size} entries do not fit")

    with pytest.raises(UserError, match="entries do not fit"):
        prepare(config, WordPieceConfig(vocab_size=50), check_tokenizer=refuse)
    assert not (tmp_path / "cache" / "shards").exists()
