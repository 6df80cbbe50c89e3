"""The tokenizer: a ``tokenizers`` pipeline whose special tokens are known by role."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertlab.errors import UserError, user_path

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")


class Tokenizer:
    """A ``tokenizers.Tokenizer`` that is ready for masked-language modelling.

    Attributes:
        backend: the pipeline.
        vocab_size: number of ids, added tokens included: the largest id + 1.
        pad_id: id of [PAD], under whatever name.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        mask_id: id of [MASK].
        unk_id: id of [UNK]; None for a byte-level tokenizer without one.
        special_ids: sorted ids of all special tokens: they are never masked.
    """

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    unk_id: int | None

    def __init__(self, backend: Backend, *, names: dict[str, str] | None = None, source: str = "tokenizer") -> None:
        """Find the special tokens and set the pipeline up.

        Args:
            backend: the pipeline; its truncation and padding are switched off, and its special tokens are registered,
                so that "[MASK]" in a text becomes the one token.
            names: role (``pad``, ``unk``, ``cls``, ``sep``, ``mask``) to token, for those that are not called as usual.
            source: where it comes from, for messages.

        Raises:
            UserError: when there is no [MASK], [CLS], [SEP] or [PAD], under any of their names.
        """
        backend.no_truncation()
        backend.no_padding()
        found: dict[str, str] = {}
        ids: dict[str, int] = {}
        for role, usual in _ROLES.items():
            candidates = [name for name in ((names or {}).get(role), *usual) if name]
            for token in candidates:
                index = backend.token_to_id(token)
                if index is not None:
                    found[role], ids[role] = token, index
                    break
            else:
                if role != "unk":
                    raise UserError(
                        f"{source}: no {usual[0]} token (looked for {', '.join(candidates)}): "
                        "masked-language modelling needs a tokenizer that has one"
                    )
        known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        backend.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in found.values() if token not in known]
        )
        self.backend = backend
        self.pad_id, self.cls_id, self.sep_id, self.mask_id = (ids[role] for role in ("pad", "cls", "sep", "mask"))
        self.unk_id = ids.get("unk")
        special = {index for index, token in backend.get_added_tokens_decoder().items() if token.special}
        self.special_ids: tuple[int, ...] = tuple(sorted(special | set(ids.values())))
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self._names = found
        framed = backend.encode("a").ids
        if len(framed) < 2 or framed[0] != self.cls_id or framed[-1] != self.sep_id:
            backend.post_processor = _template(found["cls"], self.cls_id, found["sep"], self.sep_id)

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> "Tokenizer":
        """Load an existing tokenizer.

        Args:
            path: a vocab.txt, a tokenizer.json, a folder that holds either, or a hub id.
            lowercase: for a vocab.txt: whether to fold case (None: as its tokenizer_config.json says, else fold when no
                entry has a capital letter).

        Raises:
            UserError: when it cannot be found or read, or has no [MASK].
        """
        place = user_path(path, "tokenizer.path")
        if place.is_file():
            if place.suffix == ".json":
                return cls(_read_json(place), names=_read_settings(place.parent)[0], source=str(place))
            return _load_vocab(place, lowercase, _read_settings(place.parent))
        folder = place if place.is_dir() else _download(str(path))
        names, fold = _read_settings(folder)
        if (folder / "tokenizer.json").is_file():
            return cls(_read_json(folder / "tokenizer.json"), names=names, source=str(path))
        if (folder / "vocab.txt").is_file():
            return _load_vocab(folder / "vocab.txt", lowercase, (names, fold))
        raise UserError(f"tokenizer.path={path}: neither a tokenizer.json nor a vocab.txt in it")

    def encode(self, text: str) -> Encoding:
        """Tokens of one text, without [CLS] and [SEP]."""
        return self.backend.encode(text, add_special_tokens=False)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; special tokens are spelled out."""
        return self.backend.decode([int(index) for index in ids], skip_special_tokens=False)

    def save_pretrained(self, folder: str | Path, *, token_types: bool, model_max_length: int) -> None:
        """Write tokenizer.json and tokenizer_config.json so that transformers' AutoTokenizer gives the same ids.

        Args:
            folder: an existing folder, or one to make.
            token_types: whether the model takes ``token_type_ids``.
            model_max_length: the longest sequence that the model takes, in tokens, [CLS] and [SEP] included.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        # The generic class: for a BertTokenizer transformers 5 would build a pipeline of its own from the vocabulary.
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model_max_length,
            "model_input_names": ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"],
            "clean_up_tokenization_spaces": False,
        }
        settings |= {f"{role}_token": token for role, token in self._names.items()}
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def bert_pipeline(vocabulary: dict[str, int], *, lowercase: bool, unk_token: str = "[UNK]") -> Backend:
    """BERT's pipeline: normalizer, split at white space and punctuation, greedy longest match.

    Args:
        vocabulary: token to id.
        lowercase: fold case and strip accents.
        unk_token: the token for a word that cannot be spelled.
    """
    backend = Backend(models.WordPiece(vocabulary, unk_token=unk_token))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _template(cls_token: str, cls_id: int, sep_token: str, sep_id: int) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{cls_token} $A {sep_token}",
        pair=f"{cls_token} $A {sep_token} $B:1 {sep_token}:1",
        special_tokens=[(cls_token, cls_id), (sep_token, sep_id)],
    )


def _read_json(path: Path) -> Backend:
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises the base class
        raise UserError(f"{path}: not a tokenizer.json that tokenizers can read: {error}") from error


def _load_vocab(path: Path, lowercase: bool | None, settings: tuple[dict[str, str], bool | None]) -> Tokenizer:
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a vocabulary that can be read, one token a line in UTF-8: {error}") from error
    # Split at line feeds alone: a vocabulary may hold U+2028 or U+0085 as an entry.
    entries = [entry.removesuffix("\r") for entry in text.removesuffix("\n").split("\n")]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    names, fold = settings
    if lowercase is None:
        lowercase = fold
    if lowercase is None:
        lowercase = not any(_has_capital(entry) for entry in entries)
    unknown = next((name for name in (names.get("unk"), *_ROLES["unk"]) if name in vocabulary), None)
    if unknown is None:
        raise UserError(
            f"{path}: no [UNK] among its {len(entries)} lines: is it a WordPiece vocabulary, a token a line?"
        )
    return Tokenizer(bert_pipeline(vocabulary, lowercase=lowercase, unk_token=unknown), names=names, source=str(path))


def _has_capital(entry: str) -> bool:
    # Asked this way because some signs, such as a double-struck R, count as capitals and have no lower case.
    return not (entry.startswith(("[", "<")) and len(entry) > 1) and entry != entry.lower()


def _read_settings(folder: Path) -> tuple[dict[str, str], bool | None]:
    """Special tokens by role, and whether case is folded, as the tokenizer's other files in the folder say."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            try:
                settings |= json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, TypeError) as error:
                raise UserError(f"{path}: not a JSON object that can be read: {error}") from error
    names = {}
    for role in _ROLES:
        token = settings.get(f"{role}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            names[role] = token
    fold = settings.get("do_lower_case")
    return names, fold if isinstance(fold, bool) else None


def _download(path: str) -> Path:
    if path.startswith(("/", ".", "~")) or path.endswith((".txt", ".json")) or path.count("/") > 1:
        raise UserError(f"tokenizer.path={path}: no such file or folder (relative to {Path.cwd()})")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, allow_patterns=list(_FILES)))
    except Exception as error:  # whatever the network, the hub or its cache come up with
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise UserError(
            f"tokenizer.path={path}: no such file or folder here, and the hub does not give it "
            f"({type(error).__name__}: {reason}): "
            "check the name and the network, or name a vocab.txt, a tokenizer.json or a folder"
        ) from error
