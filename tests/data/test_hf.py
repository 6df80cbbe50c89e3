import json

import pytest
from datasets.data_files import DataFilesDict, DataFilesList

from bertlab.data.config import BpeConfig, HfConfig
from bertlab.data.corpus import corpora
from bertlab.data.prepare import prepare
from bertlab.data.tokenizer_training import sample_corpus
from bertlab.errors import UserError


@pytest.fixture
def folder(tmp_path):
    def write(split, count):
        lines = [json.dumps({"id": number, "text": f"{split} {number}\r\n"}) for number in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))

    write("train", 10)
    write("validation", 3)
    return tmp_path


def texts(corpus):
    return [piece.text for piece in corpus.documents()]


def test_splits(folder):
    train, val = corpora(HfConfig(name=str(folder), val_split="validation"))
    assert texts(train) == [f"train {number}\n" for number in range(10)]
    assert texts(val) == [f"validation {number}\n" for number in range(3)]
    assert train.fingerprint() != val.fingerprint()


def test_first_documents_are_held_out(folder):
    train, val = corpora(HfConfig(name=str(folder), val_documents=4))
    assert texts(val) == [f"train {number}\n" for number in range(4)]
    assert texts(train) == [f"train {number}\n" for number in range(4, 10)]
    assert train.fingerprint() != val.fingerprint()
    train, val = corpora(HfConfig(name=str(folder), val_documents=0))
    assert val is None
    assert len(texts(train)) == 10


def test_fingerprint_follows_the_content_of_local_files(folder):
    def fingerprint(**options):
        return corpora(HfConfig(name=str(folder), val_split="validation", **options))[0].fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint(text_field="id") != first
    path = folder / "train.jsonl"
    content = path.read_text()
    path.write_text(content.replace("train 3", "train 4"))
    assert fingerprint() != first
    path.write_text(content)
    assert fingerprint() == first


def test_fingerprint_follows_the_commit_or_tag_of_remote_files(folder):
    train, _ = corpora(HfConfig(name=str(folder), val_split="validation"))

    def fingerprint(file, *metadata):
        train._builder.config.data_files = DataFilesDict({"train": DataFilesList([file], [metadata])})
        return train.fingerprint()

    file = "hf://datasets/some/name@{}/train.jsonl"
    first = fingerprint(file.format("a1"), "some/name", "a1")
    assert fingerprint(file.format("a1"), "some/name", "a1") == first
    assert fingerprint(file.format("b2"), "some/name", "b2") != first
    assert fingerprint("https://host/train.jsonl", "tag 1") != fingerprint("https://host/train.jsonl", "tag 2")
    with pytest.raises(UserError, match=r"https://host/train\.jsonl has no commit and no entity tag"):
        fingerprint("https://host/train.jsonl")
    train._builder.config.data_files = None
    with pytest.raises(UserError, match="lists no files"):
        train.fingerprint()


def test_only_the_beginning_is_sampled_for_a_tokenizer(folder):
    (folder / "train.jsonl").write_text("\n".join(json.dumps({"text": f"{n} " * 9000}) for n in range(100, 200)))
    train, _ = corpora(HfConfig(name=str(folder), val_split="validation"))
    sample = sample_corpus(train, 200_000)
    assert 200_000 <= sum(map(len, sample)) < 240_000
    assert {word for text in sample for word in text.split()} == {str(n) for n in range(100, 106)}


def test_prepared(folder, tmp_path):
    config = HfConfig(name=str(folder), val_split="validation", cache_dir=str(tmp_path / "cache"))
    prepared = prepare(config, BpeConfig(vocab_size=300))
    assert (prepared.train.num_documents, prepared.val.num_documents) == (10, 3)
    assert prepared.tokenizer.decode(prepared.val.token_ids(0, prepared.val.num_tokens)).startswith(
        "validation 0\n[SEP]"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_field": "body"}, r"no field body \(data\.text_field\); the fields are: id, text"),
        ({"text_field": "id", "val_split": "validation"}, r"the column id \(data\.text_field\) holds a int, not text"),
        ({"train_split": "test"}, r"data\.train_split=test: .* has the splits train, validation"),
        ({"val_split": "dev"}, r"data\.val_split=dev: .* has the splits train, validation"),
        ({"config": "english"}, r"english.*data=text data\.train_files="),
        ({"name": "/no/such/folder"}, r"data\.name=/no/such/folder: .*data=text data\.train_files="),
        ({"name": "nobody/nothing"}, r"data\.name=nobody/nothing: .*data=text data\.train_files="),
    ],
)
def test_errors_are_one_message(folder, options, message):
    options.setdefault("name", str(folder))
    with pytest.raises(UserError, match=message) as caught:
        texts(corpora(HfConfig(**options))[0])
    assert "\n" not in str(caught.value)


def test_all_documents_held_out(folder):
    train, _ = corpora(HfConfig(name=str(folder), val_documents=10))
    with pytest.raises(UserError, match=r"data\.val_documents=10 holds out all"):
        texts(train)


def test_a_file_format_is_no_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text("not a corpus")
    with pytest.raises(UserError, match=r"data\.name=text is a file format.*data=text"):
        corpora(HfConfig(name="text"))
