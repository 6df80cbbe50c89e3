"""Training tokenizers, so that the same text gives the same tokenizer in every process.

The trainers of ``tokenizers`` are deterministic up to the order of a hash map, which differs from process to process.
Where that order shows (in the ids of WordPiece's continuations, in Unigram's scores), it is taken out here.
"""

import heapq
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from bertlab.data.config import BpeConfig, TrainedTokenizerConfig, UnigramConfig, WordPieceConfig
from bertlab.data.pieces import Corpus, split_at_breaks
from bertlab.data.tokenizer import SPECIAL_TOKENS, Tokenizer, bert_pipeline
from bertlab.errors import UserError

logger = logging.getLogger(__name__)

_EXCERPT_CHARS = 16 * 1024
# Letters that continue words; what stands alone, an ideograph or a sign, is limited by the vocabulary only.
_MAX_LETTERS = 1000
# A vocabulary that leaves out more of the text than this share is refused.
_MAX_UNKNOWN = 0.01
# Sixteen characters of the private plane that no text holds.
_MARKS = [chr(0xF0000 + number) for number in range(16)]


def train_tokenizer(config: TrainedTokenizerConfig, texts: list[str]) -> Tokenizer:
    """Train a tokenizer; special tokens get the ids 0 to 4, in the order of ``SPECIAL_TOKENS``.

    Args:
        config: its kind and size.
        texts: the text; the same texts give the same tokenizer.

    Raises:
        UserError: when the vocabulary is too small for the characters of the text.
    """
    if isinstance(config, WordPieceConfig):
        return Tokenizer(_train_wordpiece(config, texts))
    if isinstance(config, BpeConfig):
        return Tokenizer(_train_bpe(config, texts))
    if isinstance(config, UnigramConfig):
        return Tokenizer(_train_unigram(config, texts))
    raise TypeError(f"no trainer for a {type(config).__name__}")


def sample_corpus(corpus: Corpus, sample_bytes: int) -> list[str]:
    """Excerpts of a corpus, spread evenly over it, of at most about ``sample_bytes`` UTF-8 bytes together.

    Every excerpt has a pseudo-random rank made from its number; those of the lowest ranks are kept, in the order of the
    text. So the sample depends on the text alone, and the size need not be known. Of a corpus that is downloaded while
    it is read only the beginning is taken.
    """
    kept: list[tuple[int, int, str]] = []
    kept_bytes = 0
    for number, text in enumerate(_excerpts(corpus)):
        digest = blake2b(number.to_bytes(8, "little"), digest_size=8).digest()
        rank = 0 if corpus.streamed else int.from_bytes(digest, "little")
        heapq.heappush(kept, (-rank, number, text))
        kept_bytes += len(text.encode())
        if corpus.streamed and kept_bytes >= sample_bytes:
            break
        while kept_bytes > sample_bytes and len(kept) > 1:
            kept_bytes -= len(heapq.heappop(kept)[2].encode())
    return [text for _, _, text in sorted(kept, key=lambda entry: entry[1])]


def _excerpts(corpus: Corpus) -> Iterator[str]:
    """The text in excerpts of about the same size: long documents cut, short ones joined."""
    parts: list[str] = []
    chars = 0
    for piece in corpus.documents():
        for text in split_at_breaks(piece.text, _EXCERPT_CHARS):
            parts.append(text)
            chars += len(text) + 1
            if chars >= _EXCERPT_CHARS:
                yield "\n".join(parts)
                parts, chars = [], 0
    if parts:
        yield "\n".join(parts)


def train_on_corpus(config: TrainedTokenizerConfig, corpus: Corpus) -> Tokenizer:
    """Train a tokenizer on a sample of a corpus.

    Raises:
        UserError: when the corpus holds no text, or the vocabulary is too small for its characters.
    """
    began = time.monotonic()
    texts = sample_corpus(corpus, config.sample_mb * 1_000_000)
    if not any(text.strip() for text in texts):
        raise UserError(f"{corpus.name}: no text to train a tokenizer on")
    tokenizer = train_tokenizer(config, texts)
    logger.info(
        "trained a tokenizer of %d entries on %.1f MB of %s in %.0f s",
        tokenizer.vocab_size,
        sum(len(text.encode()) for text in texts) / 1e6,
        corpus.name,
        time.monotonic() - began,
    )
    return tokenizer


def _train_wordpiece(config: WordPieceConfig, texts: list[str]) -> Backend:
    backend = bert_pipeline({token: index for index, token in enumerate(SPECIAL_TOKENS)}, lowercase=config.lowercase)
    counts: Counter[str] = Counter()
    raw_counts: Counter[str] = Counter()
    for text in texts:
        raw_counts.update(text)
    for letter, count in raw_counts.items():
        for normalized in backend.normalizer.normalize_str(letter):
            counts[normalized] += count
    alphabet, continuing = _alphabet(config, backend, counts)
    # Left to itself the trainer numbers the continuations in the order of a hash map, and that order then decides
    # between merges of equal count. Given as special tokens they have fixed numbers.
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *continuing],
        limit_alphabet=0,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return bert_pipeline(backend.get_vocab(with_added_tokens=True), lowercase=config.lowercase)


def _alphabet(config: WordPieceConfig, backend: Backend, counts: Counter[str]) -> tuple[list[str], list[str]]:
    """The commonest characters for which there is room, and those of them that continue words, with ``##``."""
    common = sorted((letter for letter in counts if not letter.isspace()), key=lambda letter: (-counts[letter], letter))
    room, letters, known = config.vocab_size - len(SPECIAL_TOKENS), 0, 0
    alphabet: list[str] = []
    continuing: list[str] = []
    for letter in common:
        # A character at which every word is cut, a punctuation mark or a CJK ideograph, never continues one.
        continues = len(_words(backend, f"a{letter}")) == 1
        letters += continues
        if (continues and letters > _MAX_LETTERS) or len(alphabet) + len(continuing) + 1 + continues > room:
            continue
        alphabet.append(letter)
        continuing += [f"##{letter}"] * continues
        known += counts[letter]
    unknown = 1 - known / max(sum(counts[letter] for letter in common), 1)
    if unknown > _MAX_UNKNOWN:
        raise UserError(
            f"tokenizer.vocab_size={config.vocab_size} has no room for the characters of the text: {unknown:.0%} of it "
            f"would be unknown; ask for more entries, or take tokenizer=bpe"
        )
    return sorted(alphabet), sorted(continuing)


def _words(backend: Backend, text: str) -> list[str]:
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))]


def _train_bpe(config: BpeConfig, texts: list[str]) -> Backend:
    backend = Backend(models.BPE())
    backend.normalizer = (
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
        if config.lowercase
        else normalizers.NFC()
    )
    # No blank in front of the text: otherwise a piece of a document would begin differently from its middle.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    # A mask in place of " word" takes the blank along, as the word's token does.
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False, special=True)])
    return backend


def _train_unigram(config: UnigramConfig, texts: list[str]) -> Backend:
    backend = Backend(models.Unigram())
    backend.normalizer = (
        normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents()])
        if config.lowercase
        else normalizers.NFKC()
    )
    # Every word gets its own mark of a word start; punctuation is cut off, as SentencePiece cuts at a change of script.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=config.vocab_size + len(_MARKS),
        special_tokens=list(SPECIAL_TOKENS),
        unk_token="[UNK]",
        show_progress=False,
    )
    try:
        backend.train_from_iterator([*texts, _marked_words(backend, texts)], trainer)
    except Exception as error:  # the library raises the base class
        raise UserError(f"tokenizer.vocab_size={config.vocab_size}: {error}: ask for more entries") from error
    entries = [
        (piece, score)
        for piece, score in json.loads(backend.to_str())["model"]["vocab"]
        if not any(mark in piece for mark in _MARKS)
    ]
    backend.model = models.Unigram(_canonical_scores(entries), unk_id=SPECIAL_TOKENS.index("[UNK]"))
    return backend


def _marked_words(backend: Backend, texts: list[str]) -> str:
    """Every word that occurs twice, once more and followed by a mark.

    The trainer takes its candidates from the list of different words, and only what occurs there with two different
    characters behind it. Without this "and", the most common word of all, would be no candidate, because it is on that
    list once. The marks alternate so that hardly a piece with a mark in it is worth its place; those are dropped.
    """
    spaced: Counter[str] = Counter()
    for text in texts:
        spaced.update(text.split())
    words: Counter[str] = Counter()
    for word, count in spaced.items():
        for part in _words(backend, word):
            words[part] += count
    starts = sorted(word[1:] for word, count in words.items() if count > 1 and word.startswith("▁"))
    return " ".join(word + _MARKS[number % len(_MARKS)] for number, word in enumerate(starts) if word)


def _canonical_scores(entries: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Take the hash map's order out of a Unigram vocabulary.

    The scores carry rounding noise of about 1e-11, and the characters that no piece was left for got the lowest score
    plus 1e-4 for each such character before them, in the map's order. Here these all get the lowest score, the others
    are rounded, and the entries are sorted.
    """
    special, scored = entries[: len(SPECIAL_TOKENS)], entries[len(SPECIAL_TOKENS) :]
    lowest = min((score for _, score in scored), default=0.0)
    letters = sum(len(piece) == 1 for piece, _ in scored)

    def canonical(piece: str, score: float) -> float:
        steps = (score - lowest) / 1e-4
        if len(piece) == 1 and steps < letters and abs(steps - round(steps)) < 1e-3:
            return round(lowest, 3)
        return round(score, 3)

    ranked = [(piece, canonical(piece, score)) for piece, score in scored]
    return special + sorted(ranked, key=lambda entry: (-entry[1], entry[0]))
