"""PretrainingData over a real corpus: tokenizer, shards, rows, loaders."""

import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertlab.data
from bertlab.data import Batch, MaskingConfig, PretrainingData, masked_count
from bertlab.data.config import TextConfig, WordPieceConfig
from bertlab.data.prepare import prepare
from bertlab.errors import UserError

WORDS = [
    f"{first}{second}{third}"
    for first in "bdfglm"
    for second in ("a", "e", "i", "ou")
    for third in ("", "n", "rd", "stle")
]


def write_documents(path: Path, documents: int, seed: int) -> None:
    """Documents of 1 to 60 words, a line each."""
    generator = np.random.default_rng(seed)
    lines = (" ".join(generator.choice(WORDS, generator.integers(1, 60))) for _ in range(documents))
    path.write_text("".join(line + ".\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The config and what ``prepare`` makes of it."""
    folder = tmp_path_factory.mktemp("corpus")
    write_documents(folder / "train.txt", 60, seed=1)
    write_documents(folder / "val.txt", 20, seed=2)
    config = TextConfig(
        train_files=[str(folder / "train.txt")],
        val_files=[str(folder / "val.txt")],
        document="line",
        sequence_length=37,  # no multiple of 8
        global_batch_size=12,
        micro_batch_size=3,
        val_batch_size=5,
        prepare_workers=1,
        cache_dir=str(folder / "cache"),
    )
    return config, prepare(config, WordPieceConfig(vocab_size=80))


def data_of(corpus: Any, *, unit: str = "token", seed: int = 4, **changes: Any) -> PretrainingData:
    config, prepared = corpus
    masking = MaskingConfig(unit=unit)
    return PretrainingData(
        replace(config, **changes), masking, prepared.tokenizer, prepared.train, prepared.val, seed=seed
    )


def plain(batch: Batch) -> tuple:
    return tuple(value.tolist() if isinstance(value, torch.Tensor) else value for value in batch)


def labelled_rows(batch: Batch) -> dict[int, tuple[list[int], list[int]]]:
    """Row number -> masked ids (real tokens only) and labels, without the batch's padding."""
    b, width = batch.input_ids.shape
    labels = torch.full((b * width,), -100)
    used = batch.labels != -100
    labels[batch.masked_positions[used]] = batch.labels[used]
    mask = torch.ones(b, width, dtype=torch.bool) if batch.attention_mask is None else batch.attention_mask
    return {
        int(row): (batch.input_ids[k][mask[k]].tolist(), labels.view(b, width)[k][mask[k]].tolist())
        for k, row in enumerate(batch.rows)
    }


@pytest.mark.parametrize("packing", ["join", "none"])
@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_batches_hold_the_rows_masked(corpus: Any, packing: str, unit: str) -> None:
    data = data_of(corpus, packing=packing, unit=unit)
    tokenizer = corpus[1].tokenizer
    most = 3 * masked_count(35, 0.15)
    batches = list(data.train_loader(max_steps=12))
    assert len(batches) == 12 * 4
    for batch in batches:
        b, width = batch.input_ids.shape
        lengths = data.train_rows.lengths[batch.rows.numpy()]
        assert b == 3
        assert width == min(37, (max(lengths) + 7) // 8 * 8)
        assert batch.num_tokens == sum(lengths)
        assert (batch.attention_mask is None) == (min(lengths) == width)
        if batch.attention_mask is not None:
            assert batch.attention_mask.sum(1).tolist() == lengths.tolist()
            assert (batch.input_ids[~batch.attention_mask] == tokenizer.pad_id).all()
        assert batch.masked_positions.shape == batch.labels.shape == (most,)
        used = batch.labels != -100
        assert used.tolist() == sorted(used.tolist(), reverse=True), "the unused rest comes last"
        assert (batch.masked_positions[~used] == 0).all()
        for row, (ids, labels) in labelled_rows(batch).items():
            original, maskable, _ = data.train_rows.read(row)
            assert sum(label != -100 for label in labels) == masked_count(int(maskable.sum()), 0.15)
            restored = [label if label != -100 else token for token, label in zip(ids, labels, strict=True)]
            assert restored == original.tolist()
    if packing == "none":
        assert any(batch.attention_mask is not None for batch in batches)


def test_rows_hold_the_text(corpus: Any) -> None:
    config, prepared = corpus
    documents = Path(config.train_files[0]).read_text(encoding="utf-8").splitlines()
    expected = []
    for document in documents:
        expected += [*prepared.tokenizer.encode(document).ids, prepared.tokenizer.sep_id]
    rows = data_of(corpus).train_rows
    found = [token for row in range(len(rows)) for token in rows.read(row)[0][1:-1].tolist()]
    assert [*found, prepared.tokenizer.sep_id] == expected


def test_words_of_the_rows_are_those_of_the_text(corpus: Any) -> None:
    config, prepared = corpus
    rows = data_of(corpus, packing="none", sequence_length=1000).train_rows
    for row, document in enumerate(Path(config.train_files[0]).read_text(encoding="utf-8").splitlines()):
        _, _, word_ids = rows.read(row)
        words = prepared.tokenizer.encode(document).word_ids
        assert len(np.unique(word_ids[1:-1])) == len(set(words))
        assert (np.diff(word_ids[1:-1]) != 0).tolist() == (np.diff(words) != 0).tolist()


def test_global_masked_is_the_count_of_all_micro_batches_of_all_ranks(corpus: Any) -> None:
    data = data_of(corpus, packing="none")
    counted, announced = defaultdict(int), defaultdict(set)
    for rank in range(2):
        for number, batch in enumerate(data.train_loader(max_steps=5, rank=rank, world_size=2)):
            counted[number // 2] += int((batch.labels != -100).sum())
            announced[number // 2].add(batch.global_masked)
    assert len(counted) == 5
    assert {step: {count} for step, count in counted.items()} == announced


@pytest.mark.parametrize("unit", ["token", "span"])
def test_worker_processes_change_nothing(corpus: Any, unit: str) -> None:
    alone, helped = (data_of(corpus, unit=unit, packing="none", num_workers=workers) for workers in (0, 2))
    expected = [plain(batch) for batch in alone.train_loader(max_steps=10)]
    loader = helped.train_loader(max_steps=10)
    assert [plain(batch) for batch in loader] == expected
    assert [plain(batch) for batch in loader] == expected, "again, with the same worker processes"
    assert [plain(batch) for batch in helped.val_loader()] == [plain(batch) for batch in alone.val_loader()]


def test_a_loader_that_starts_later_goes_on_identically(corpus: Any) -> None:
    data = data_of(corpus)
    expected = [plain(batch) for batch in data.train_loader(max_steps=9)]
    assert [plain(batch) for batch in data.train_loader(start_step=4, max_steps=9)] == expected[16:]
    assert [plain(batch) for batch in data_of(corpus, seed=5).train_loader(max_steps=9)] != expected


def test_split_into_micro_batches_changes_no_row(corpus: Any) -> None:
    def step_of(micro_batch_size: int) -> list[dict]:
        data = data_of(corpus, packing="none", micro_batch_size=micro_batch_size)
        return [labelled_rows(batch) for batch in data.train_loader(start_step=3, max_steps=4)]

    whole = step_of(12)[0]
    assert len(whole) == 12
    for size in (1, 4):
        parts = step_of(size)
        assert len(parts) == 12 // size
        assert {row: content for part in parts for row, content in part.items()} == whole


def test_every_epoch_masks_a_row_anew(corpus: Any) -> None:
    data = data_of(corpus)
    seen = defaultdict(list)
    for batch in data.train_loader(max_steps=3 * len(data.train_rows) // 12 + 1):
        for row, (_, labels) in labelled_rows(batch).items():
            seen[row].append(tuple(labels))
    assert len(seen) == len(data.train_rows)
    repeated = sum(len(set(labels)) < len(labels) for labels in seen.values())
    assert repeated <= 1  # a short row may be hit twice by chance


def test_validation_masks_are_fixed(corpus: Any) -> None:
    def masks(**options: Any) -> dict:
        data = data_of(corpus, **options)
        found = {}
        for batch in data.val_loader():
            found.update(labelled_rows(batch))
        assert list(found) == list(range(len(data.val_rows)))
        return found

    expected = masks()
    assert masks(val_batch_size=1) == masks(val_batch_size=64) == masks(seed=99) == expected
    assert masks(num_workers=2) == expected


def test_validation_is_optional_and_its_faults_are_named(corpus: Any) -> None:
    config, prepared = corpus
    data = PretrainingData(config, MaskingConfig(), prepared.tokenizer, prepared.train, None, seed=0)
    assert data.val_loader() is None
    assert data.masking.vocab_size == prepared.tokenizer.vocab_size
    assert data.masking.mask_token_id == prepared.tokenizer.mask_id
    between = prepared.val.num_tokens + 10
    assert between < prepared.train.num_tokens
    with pytest.raises(UserError, match=f"the validation text has .* data.sequence_length={between} "):
        data_of(corpus, sequence_length=between)


def test_names_load_when_they_are_used() -> None:
    for name in bertlab.data.__all__:
        assert getattr(bertlab.data, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'mask_token'"):
        bertlab.data.mask_token  # noqa: B018
    program = "import sys; from bertlab.data import MaskingConfig; MaskingConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
