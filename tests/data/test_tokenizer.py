import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from bertlab.data.config import BpeConfig, KjvConfig, UnigramConfig, WordPieceConfig
from bertlab.data.corpus import corpora
from bertlab.data.pieces import split_at_breaks
from bertlab.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertlab.data.tokenizer_training import train_tokenizer
from bertlab.errors import UserError

UNCASED = Path(__file__).parents[2].parent / "shared" / "data" / "vocab" / "bert-base-uncased-vocab.txt"
CONFIGS = {
    "wordpiece": WordPieceConfig(vocab_size=1000),
    "wordpiece-cased": WordPieceConfig(vocab_size=1000, lowercase=False),
    "bpe": BpeConfig(vocab_size=1000),
    "bpe-uncased": BpeConfig(vocab_size=1000, lowercase=True),
    "unigram": UnigramConfig(vocab_size=1000),
    "unigram-uncased": UnigramConfig(vocab_size=1000, lowercase=True),
}
KINDS = [*CONFIGS, "vocab.txt"]
WORDS = [
    "And",
    "God",
    "said",
    "LIGHT",
    "[MASK]",
    "[SEP]",
    "[PAD]",
    "naïve",
    "İ",
    "don't",
    "1,234.5",
    "王と",
    "😀",
    "e\u0301",
]
TEXT = st.lists(
    st.sampled_from(WORDS) | st.text(max_size=6) | st.text(" \n\t\u3000\u2028\x85\x1c\r", max_size=3), max_size=12
).map("".join)


@pytest.fixture(scope="session")
def bible():
    return [piece.text for piece in corpora(KjvConfig())[1].documents()]


@pytest.fixture(scope="session")
def tokenizers(bible, tmp_path_factory):
    trained = {kind: train_tokenizer(config, bible) for kind, config in CONFIGS.items()}
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    entries = sorted(trained["wordpiece"].backend.get_vocab().items(), key=lambda entry: entry[1])
    path.write_text("\n".join(token for token, _ in entries) + "\n", encoding="utf-8")
    return {**trained, "vocab.txt": Tokenizer.load(path)}


@pytest.fixture(scope="session")
def exported(tokenizers, tmp_path_factory):
    """The tokenizers as transformers opens them: without a model beside them, and beside those of both presets."""
    opened = {}
    for kind, tokenizer in tokenizers.items():
        for model_type in (None, "bert", "modernbert"):
            folder = tmp_path_factory.mktemp("exported")
            tokenizer.save_pretrained(folder, token_types=model_type != "modernbert", model_max_length=128)
            if model_type is not None:
                (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
            opened[kind, model_type] = AutoTokenizer.from_pretrained(folder)
    return opened


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens(tokenizers, kind):
    tokenizer = tokenizers[kind]
    ids = tuple(tokenizer.backend.token_to_id(token) for token in SPECIAL_TOKENS)
    assert ids == (0, 1, 2, 3, 4)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == ids
    assert tokenizer.special_ids == ids
    assert tokenizer.vocab_size == tokenizer.backend.get_vocab_size()
    encoding = tokenizer.encode("God [MASK] light")
    assert encoding.ids.count(tokenizer.mask_id) == 1
    assert not {tokenizer.cls_id, tokenizer.sep_id} & set(encoding.ids)
    framed = tokenizer.backend.encode("God", "light")
    assert framed.tokens[0] == "[CLS]"
    assert framed.tokens.count("[SEP]") == 2
    assert framed.type_ids[-1] == 1


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(text=TEXT)
def test_transformers_gives_the_same_ids(tokenizers, exported, kind, text):
    expected = tokenizers[kind].backend.encode(text).ids
    for model_type in (None, "bert", "modernbert"):
        assert exported[kind, model_type](text)["input_ids"] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_knows_the_special_tokens(tokenizers, exported, kind, tmp_path):
    tokenizer = tokenizers[kind]
    for model_type in (None, "bert", "modernbert"):
        other = exported[kind, model_type]
        assert len(other) == tokenizer.vocab_size
        assert (other.pad_token_id, other.unk_token_id, other.cls_token_id, other.sep_token_id) == (0, 1, 2, 3)
        assert other.mask_token_id == 4
        assert other.model_max_length == 128
        assert ("token_type_ids" in other("God")) == (model_type != "modernbert")
    pair = exported[kind, "bert"]("God", "light")
    framed = tokenizer.backend.encode("God", "light")
    assert (pair["input_ids"], pair["token_type_ids"]) == (framed.ids, framed.type_ids)
    # What transformers writes again is still read here, and is the same.
    exported[kind, "bert"].save_pretrained(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.encode("And God said [MASK] light").ids == tokenizer.encode("And God said [MASK] light").ids


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(text=TEXT, size=st.integers(1, 12))
def test_cuts_at_breaks_do_not_show(tokenizers, kind, text, size):
    tokenizer = tokenizers[kind]
    whole = tokenizer.encode(text)
    parts = [tokenizer.encode(part) for part in split_at_breaks(text, size)]
    assert [index for part in parts for index in part.ids] == whole.ids


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(text=TEXT)
def test_saved_and_loaded_is_the_same(tokenizers, kind, text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tokenizers[kind].save_pretrained(folder, token_types=True, model_max_length=64)
    for path in (folder, folder / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert loaded.backend.to_str() == tokenizers[kind].backend.to_str()
        assert loaded.encode(text).ids == tokenizers[kind].encode(text).ids


def test_vocab_txt_folds_case_unless_an_entry_has_a_capital(tmp_path):
    def tokens(*entries, lowercase=None):
        (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *entries]), encoding="utf-8")
        return Tokenizer.load(tmp_path, lowercase=lowercase).encode("Gód [MASK]").tokens

    assert tokens("god", "gód", "ℝ") == ["god", "[MASK]"]
    assert tokens("god", "gód", "God") == ["[UNK]", "[MASK]"]
    assert tokens("god", "gód", "God", lowercase=True) == ["god", "[MASK]"]
    assert tokens("gód", lowercase=False) == ["[UNK]", "[MASK]"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert tokens("god", "gód") == ["[UNK]", "[MASK]"]
    assert tokens("god", "gód", lowercase=True) == ["god", "[MASK]"]


def test_vocab_txt_ids_are_line_numbers(tmp_path):
    entries = [*SPECIAL_TOKENS, "a", "\u2028", "\x85", "b"]
    path = tmp_path / "my-vocab.txt"
    for newline in ("\n", "\r\n"):
        path.write_bytes(newline.join([*entries, ""]).encode())
        tokenizer = Tokenizer.load(str(path))
        assert tokenizer.vocab_size == 9
        assert tokenizer.backend.token_to_id("b") == 8


@pytest.mark.skipif(not UNCASED.is_file(), reason="needs the vocabulary of BERT-base uncased in ../shared/data")
def test_vocabulary_of_bert_base_uncased():
    tokenizer = Tokenizer.load(UNCASED)
    assert (tokenizer.vocab_size, tokenizer.mask_id, tokenizer.special_ids) == (30_522, 103, (0, 100, 101, 102, 103))
    encoding = tokenizer.encode("Unaffable Ünïcorns [MASK]!")
    assert encoding.tokens == ["una", "##ffa", "##ble", "unicorn", "##s", "[MASK]", "!"]
    assert tokenizer.decode(encoding.ids) == "unaffable unicorns [MASK]!"


def roberta(*extra):
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), start=4)}
    backend = Backend(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", *extra])
    return backend


def test_roberta_names_are_recognised(tmp_path):
    backend = roberta(AddedToken("<mask>", lstrip=True, special=True))
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.mask_id == 260
    assert tokenizer.vocab_size == 261
    assert tokenizer.special_ids == (0, 1, 2, 3, 260)
    # Neither cut nor padded, and the pair keeps its own two separators.
    assert len(tokenizer.encode("longer than three")) == 17
    assert tokenizer.backend.encode("a", "b").ids[2:4] == [2, 2]
    tokenizer.save_pretrained(tmp_path / "out", token_types=False, model_max_length=32)
    other = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert other.mask_token == "<mask>"
    assert other("a <mask> b")["input_ids"] == tokenizer.backend.encode("a <mask> b").ids


def test_names_come_from_tokenizer_config(tmp_path):
    backend = roberta("<|m|>")
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"no \[MASK\] token \(looked for \[MASK\], <mask>\)"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": {"content": "<|m|>"}, "cls_token": "<s>"}')
    assert Tokenizer.load(tmp_path).mask_id == 260


def test_template_is_added_where_there_is_none(tmp_path):
    backend = roberta("<mask>")
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer = Tokenizer(backend)
    assert tokenizer.backend.encode("a").ids[::2] == [0, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "one\ntwo", r"no \[UNK\] among its 2 lines"),
        ("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n[PAD]", r"no \[MASK\] token"),
        ("vocab.txt", b"\xff\xfe", "not a vocabulary that can be read"),
        ("tokenizer.json", "{}", r"not a tokenizer\.json that tokenizers can read"),
        ("tokenizer_config.json", "{", "not a JSON object that can be read"),
        ("other.model", "x", r"neither a tokenizer\.json nor a vocab\.txt"),
    ],
)
def test_broken_folders(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("path", ["/no/such/vocab.txt", "./none", "none.json", "a/b/c"])
def test_missing_files(path):
    with pytest.raises(UserError, match=f"tokenizer.path={path}: no such file or folder"):
        Tokenizer.load(path)


def test_hub_out_of_reach():
    with pytest.raises(UserError, match="tokenizer.path=nobody/nothing: .* the hub does not give it") as caught:
        Tokenizer.load("nobody/nothing")
    assert "\n" not in str(caught.value)
