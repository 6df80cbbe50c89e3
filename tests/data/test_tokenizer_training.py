import hashlib
import subprocess
import sys

import pytest

from bertlab.data.config import BpeConfig, KjvConfig, TextConfig, UnigramConfig, WordPieceConfig
from bertlab.data.corpus import corpora
from bertlab.data.tokenizer_training import sample_corpus, train_on_corpus, train_tokenizer
from bertlab.errors import UserError

CONFIGS = [
    WordPieceConfig(vocab_size=20_000),
    WordPieceConfig(vocab_size=700, lowercase=False),
    BpeConfig(vocab_size=1500),
    UnigramConfig(vocab_size=700),
    UnigramConfig(vocab_size=20_000, lowercase=True),
]
# Run in processes of their own: the order of a hash map differs from process to process.
PROGRAM = """
import hashlib
from bertlab.data.config import *
from bertlab.data.corpus import corpora
from bertlab.data.tokenizer_training import train_on_corpus
val = corpora(KjvConfig())[1]
print(hashlib.sha256(train_on_corpus({config}, val).backend.to_str().encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def val():
    return corpora(KjvConfig())[1]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_same_text_gives_the_same_tokenizer_in_every_process(config, val):
    first = hashlib.sha256(train_on_corpus(config, val).backend.to_str().encode()).hexdigest()
    others = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(config=config)], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert others == [first, first]


def test_vocabulary_is_no_larger_than_asked_and_may_be_smaller(val):
    for config in CONFIGS:
        size = train_on_corpus(config, val).vocab_size
        assert size == config.vocab_size if config.vocab_size < 2000 else 2000 < size < 10_000


def test_common_words_are_single_tokens_in_every_kind(val):
    for config in (WordPieceConfig(vocab_size=1000), BpeConfig(vocab_size=1000), UnigramConfig(vocab_size=1000)):
        tokenizer = train_on_corpus(config, val)
        assert len(tokenizer.encode(" and the he that unto")) == 5, tokenizer.encode(" and the he that unto").tokens


def test_wordpiece_spells_every_word_of_its_text(val):
    tokenizer = train_on_corpus(WordPieceConfig(vocab_size=100), val)
    for piece in val.documents():
        assert tokenizer.unk_id not in tokenizer.encode(piece.text).ids


def test_letters_that_continue_words_are_capped():
    rare = "".join(chr(0xA000 + number) for number in range(1165))  # the syllables of Yi
    tokenizer = train_tokenizer(WordPieceConfig(vocab_size=5000), ["light " * 9000, rare])
    assert sum(len(token) == 1 for token in tokenizer.backend.get_vocab()) == 1000
    assert tokenizer.encode("light").tokens == ["light"]


def test_unigram_smaller_than_its_alphabet(val):
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size=16: .*ask for more entries"):
        train_on_corpus(UnigramConfig(vocab_size=16), val)


def test_bpe_smaller_than_the_bytes():
    with pytest.raises(UserError, match="must be at least 261"):
        BpeConfig(vocab_size=260)


def test_bpe_mask_takes_the_blank_before_it(val):
    tokenizer = train_on_corpus(BpeConfig(vocab_size=1000), val)
    assert tokenizer.encode("and [MASK] the").tokens[1:] == [" [MASK]", "Ġthe"]


def test_decoding_gives_the_text_back(val):
    text = next(val.documents()).text
    assert train_on_corpus(BpeConfig(vocab_size=500), val).backend.encode(text).ids
    for config, expected in (
        (BpeConfig(vocab_size=500), text),
        (UnigramConfig(vocab_size=500), text.replace("\n", " ")),
    ):
        tokenizer = train_on_corpus(config, val)
        assert tokenizer.decode(tokenizer.encode(text).ids) == expected


def test_sample_is_spread_over_the_corpus(tmp_path):
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(f"file{number:02} " * 15_000)
    corpus, _ = corpora(TextConfig(train_files=[f"{tmp_path}/*.txt"]))
    sample = sample_corpus(corpus, 1_000_000)
    assert 970_000 < sum(map(len, sample)) <= 1_000_000
    names = [text.split()[0] for text in sample]
    assert names == sorted(names)
    assert len(set(names)) > 25
    assert sample == sample_corpus(corpus, 1_000_000)
    everything = " ".join(sample_corpus(corpus, 100_000_000)).split()
    assert everything == [word for piece in corpus.documents() for word in piece.text.split()]


def test_short_documents_are_sampled_together(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line number {number}\n" for number in range(20_000)))
    corpus, _ = corpora(TextConfig(train_files=[f"{tmp_path}/a.txt"], document="line"))
    sample = sample_corpus(corpus, 1_000_000)
    assert len(sample) < 30
    assert "\n".join(sample).split("\n") == [piece.text for piece in corpus.documents()]


def test_no_text(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    corpus, _ = corpora(TextConfig(train_files=[f"{tmp_path}/a.txt"]))
    with pytest.raises(UserError, match=r"a\.txt\): no text to train a tokenizer on"):
        train_on_corpus(WordPieceConfig(), corpus)


def test_ideographs_are_limited_by_the_vocabulary_alone():
    ideographs = [chr(0x4E00 + number) for number in range(3000)]
    text = "".join(ideographs) * 2 + " and some words of letters, words of letters " * 50
    tokenizer = train_tokenizer(WordPieceConfig(vocab_size=4000), [text])
    assert all(tokenizer.backend.token_to_id(ideograph) is not None for ideograph in ideographs)
    assert tokenizer.encode("words 丁").tokens == ["words", "丁"]


def test_a_vocabulary_without_room_for_the_characters_is_refused():
    text = "the quick brown fox jumps over the lazy dog " * 10
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size=16 has no room .* \d+% of it would be unknown"):
        train_tokenizer(WordPieceConfig(vocab_size=16), [text])
    # What is rare gives way to what is common.
    tokenizer = train_tokenizer(
        WordPieceConfig(vocab_size=40), ["abcdefgh " * 500 + "".join(map(chr, range(945, 970)))]
    )
    assert tokenizer.vocab_size <= 40
    assert tokenizer.encode("h").tokens == ["h"]
    assert tokenizer.encode("ω").tokens == ["[UNK]"]
