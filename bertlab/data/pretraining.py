"""PretrainingData: from token shards to the loaders of a run."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, Dataset

from bertlab.data.batch import Batch, build_batch
from bertlab.data.config import DataConfig, MaskingConfig
from bertlab.data.packing import Rows, build_rows
from bertlab.data.sampler import GlobalBatchSampler, MicroBatchPlan, ValidationSampler
from bertlab.data.shards import TokenShards
from bertlab.data.tokenizer import Tokenizer

_VALIDATION_SEED = 0  # not the run's: the masks of the validation set are the same in all runs


class PretrainingData:
    """The rows of both splits, and loaders of masked batches.

    Attributes:
        masking: the masking config with the tokenizer's ids in it.
        train_rows: rows of the training split.
        val_rows: rows of the validation split, None without one.
    """

    def __init__(
        self,
        config: DataConfig,
        masking: MaskingConfig,
        tokenizer: Tokenizer,
        train: TokenShards,
        val: TokenShards | None,
        *,
        seed: int,
    ) -> None:
        """Cut both splits into rows.

        Args:
            config: lengths, packing, batch sizes, workers.
            masking: the probabilities and the unit; the vocabulary's ids are taken from ``tokenizer``.
            tokenizer: the one that made the shards.
            train: stream of the training split.
            val: stream of the validation split.
            seed: the seed of the run, from which shuffles and training masks follow.

        Raises:
            UserError: when a split has fewer tokens than one row.
        """
        self.masking = replace(
            masking,
            vocab_size=tokenizer.vocab_size,
            mask_token_id=tokenizer.mask_id,
            special_token_ids=tokenizer.special_ids,
        )
        self.train_rows = self._rows(config, tokenizer, train, "training")
        self.val_rows = None if val is None else self._rows(config, tokenizer, val, "validation")
        self._config = config
        self._pad_id = tokenizer.pad_id
        self._seed = seed

    def train_loader(
        self, start_step: int = 0, max_steps: int | None = None, rank: int = 0, world_size: int = 1
    ) -> DataLoader[Batch]:
        """Training micro-batches; see ``GlobalBatchSampler`` for the arguments.

        Raises:
            UserError: when the global batch does not divide into equally many micro-batches per rank.
        """
        sampler = GlobalBatchSampler(
            self.train_rows.maskable,
            probability=self.masking.probability,
            global_batch_size=self._config.global_batch_size,
            micro_batch_size=self._config.micro_batch_size,
            seed=self._seed,
            start_step=start_step,
            max_steps=max_steps,
            rank=rank,
            world_size=world_size,
        )
        return self._loader(self.train_rows, sampler, self._seed)

    def val_loader(self) -> DataLoader[Batch] | None:
        """Every validation row once, in order, always with the same masks; None without a validation split."""
        if self.val_rows is None:
            return None
        sampler = ValidationSampler(
            self.val_rows.maskable, probability=self.masking.probability, batch_size=self._config.val_batch_size
        )
        return self._loader(self.val_rows, sampler, _VALIDATION_SEED)

    @staticmethod
    def _rows(config: DataConfig, tokenizer: Tokenizer, shards: TokenShards, split: str) -> Rows:
        return build_rows(
            shards, packing=config.packing, sequence_length=config.sequence_length, tokenizer=tokenizer, split=split
        )

    def _loader(self, rows: Rows, sampler: Iterable[MicroBatchPlan], seed: int) -> DataLoader[Batch]:
        dataset = _MaskedRows(rows, self.masking, seed, self._config.sequence_length, self._pad_id)
        workers = self._config.num_workers
        return DataLoader(
            dataset,
            sampler=sampler,
            batch_size=None,
            num_workers=workers,  # torch gives each of them one thread
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
        )


class _MaskedRows(Dataset[Batch]):
    """A data set whose index is a plan of the sampler."""

    def __init__(self, rows: Rows, masking: MaskingConfig, seed: int, sequence_length: int, pad_id: int) -> None:
        self._rows = rows
        self._masking = masking
        self._seed = seed
        self._sequence_length = sequence_length
        self._pad_id = pad_id

    def __getitem__(self, plan: MicroBatchPlan) -> Batch:
        return build_batch(
            plan,
            self._rows,
            self._masking,
            seed=self._seed,
            sequence_length=self._sequence_length,
            pad_id=self._pad_id,
        )
