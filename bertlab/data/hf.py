"""Corpora from the ``datasets`` library, streamed: nothing is downloaded but what is read."""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertlab.data.config import HfConfig
from bertlab.data.files import file_digest, missing_field
from bertlab.data.pieces import Corpus, Piece, pieces_of
from bertlab.errors import UserError, user_path

logger = logging.getLogger(__name__)

_OWN_FILES = "data=text data.train_files='[corpus/**/*.txt]' reads files of your own instead"


class HfCorpus(Corpus):
    """One split of a dataset, a document a record."""

    streamed = True

    def __init__(self, builder: Any, split: str, text_field: str, *, skip: int = 0, take: int | None = None) -> None:
        """Choose the records.

        Args:
            builder: the dataset's builder; all splits come from the same one, so from the same revision.
            split: name of the split.
            text_field: the column that holds the text.
            skip: number of records to leave out at the start.
            take: number of records to read after those (None: all).
        """
        config_name = "" if builder.config.name == "default" else f" {builder.config.name}"
        self.name = f"{builder.dataset_name}{config_name} {split}{'' if take is None else f' (first {take} documents)'}"
        self.size_bytes = None
        self.position = 0
        self._builder = builder
        self._split = split
        self._text_field = text_field
        self._skip = skip
        self._take = take
        self._num_records: int | None = None
        size = (builder.info.splits or {}).get(split)
        if take is None and size is not None and size.num_examples and size.num_bytes:
            self._num_records, self.size_bytes = max(size.num_examples - skip, 1), size.num_bytes

    def documents(self) -> Iterator[Piece]:
        """The text of each record, in order.

        Raises:
            UserError: when the data cannot be fetched or read, or has no such column.
        """
        self.position = number = 0
        for number, text in enumerate(self._texts(), start=1):
            if self._num_records is not None and self.size_bytes is not None:
                self.position = min(number * self.size_bytes // self._num_records, self.size_bytes)
            else:
                self.position += len(text)
            yield from pieces_of(text.replace("\r\n", "\n").replace("\r", "\n"))
        if self._skip and not number:
            raise UserError(
                f"{self.name}: data.val_documents={self._skip} holds out all the documents that there are: lower it, "
                "or name data.val_split"
            )

    def fingerprint(self) -> str:
        """Hash of the builder, its settings, the records that are taken, and the content of the split's files.

        Content means the bytes of local files, and the commit or entity tag of remote ones. A remote file with neither
        could change without notice, so it is refused.
        """
        import datasets

        settings = {name: repr(value) for name, value in vars(self._builder.config).items() if name != "data_files"}
        parts = [datasets.__version__, type(self._builder).__name__, settings, self._split, self._text_field]
        parts += [self._skip, self._take, [self._origin(*file) for file in self._files()]]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _files(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        files = (self._builder.config.data_files or {}).get(self._split)
        if not files:
            raise UserError(f"{self.name}: this dataset lists no files, so changes would go unnoticed: {_OWN_FILES}")
        yield from zip(files, files.origin_metadata, strict=True)

    def _origin(self, file: str, metadata: tuple[str, ...]) -> list[str]:
        if "://" not in file:
            return [file_digest(Path(file))]
        if not any(metadata):
            raise UserError(f"{self.name}: {file} has no commit and no entity tag: download it, then {_OWN_FILES}")
        return [file, *map(str, metadata)]

    def _texts(self) -> Iterator[str]:
        try:
            records = self._builder.as_streaming_dataset(split=self._split)
            if records.column_names is not None:
                self._check_columns(records.column_names)
                records = records.select_columns([self._text_field])
            records = records.skip(self._skip) if self._skip else records
            records = records.take(self._take) if self._take is not None else records
            for record in records:
                self._check_columns(list(record))
                text = record[self._text_field]
                if isinstance(text, str):
                    yield text
                elif text is not None:
                    raise UserError(
                        f"{self.name}: the column {self._text_field} (data.text_field) holds a {type(text).__name__}, "
                        "not text"
                    )
        except UserError:
            raise
        except Exception as error:  # the library passes on whatever its readers and the network raise
            raise UserError(f"{self.name}: {_reason(error)}; {_OWN_FILES}") from error

    def _check_columns(self, columns: list[str]) -> None:
        if self._text_field not in columns:
            raise UserError(missing_field(self.name, self._text_field, columns))


def hf_corpora(config: HfConfig) -> tuple[Corpus, Corpus | None]:
    """The training and the validation corpus of a dataset.

    Raises:
        UserError: when the dataset, its configuration or a split is not there, or the hub is out of reach.
    """
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    name = str(user_path(config.name, "data.name")) if config.name.startswith("~") else config.name
    if name in _PACKAGED_DATASETS_MODULES and not Path(name).is_dir():
        raise UserError(f"data.name={name} is a file format, not a dataset: {_OWN_FILES}")
    if not Path(name).is_dir():
        logger.info("asking the Hugging Face hub for %s", name)
    try:
        builder = datasets.load_dataset_builder(name, config.config, revision=config.revision)
        available = list(builder.as_streaming_dataset())
    except Exception as error:  # unknown name, unknown configuration, no network: each has a class of its own
        raise UserError(f"data.name={config.name}: {_reason(error)}; {_OWN_FILES}") from error
    for option, split in (("train_split", config.train_split), ("val_split", config.val_split)):
        if split is not None and split not in available:
            raise UserError(f"data.{option}={split}: {config.name} has the splits {', '.join(map(str, available))}")
    if config.val_split is not None:
        val = HfCorpus(builder, config.val_split, config.text_field)
        return HfCorpus(builder, config.train_split, config.text_field), val
    if config.val_documents == 0:
        return HfCorpus(builder, config.train_split, config.text_field), None
    return (
        HfCorpus(builder, config.train_split, config.text_field, skip=config.val_documents),
        HfCorpus(builder, config.train_split, config.text_field, take=config.val_documents),
    )


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0].rstrip('.') if lines else 'failed'} ({type(error).__name__})"
