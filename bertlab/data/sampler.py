"""Which rows are in which batch: a pure function of (seed, step), so that a run can start at any step."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bertlab.data.masking import masked_counts
from bertlab.errors import UserError
from bertlab.ops.random import derive_seed


class MicroBatchPlan(NamedTuple):
    """The rows that go through the model at once.

    Attributes:
        step: the optimizer step, or the number of the batch in validation.
        micro: number of the micro-batch within the step, counted on each rank from 0.
        rows: row numbers, int64 [b].
        epochs: the pass over the data that each row belongs to, int64 [b].
        global_masked: masked tokens in all the micro-batches of the step, on all ranks. It is 0 only if no row of the
            step has a token to predict: then the loss is a sum over nothing, to be divided by 1.
    """

    step: int
    micro: int
    rows: np.ndarray
    epochs: np.ndarray
    global_masked: int


@lru_cache(maxsize=2)  # a batch may reach from one epoch into the next
def _shuffle(seed: int, epoch: int, n: int) -> np.ndarray:
    """The order of the ``n`` rows in an epoch, int64 [n]."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "shuffle", epoch)))
    return generator.permutation(n)


class GlobalBatchSampler:
    """Endless shuffled passes over the rows, cut into global batches and these into micro-batches.

    Sample p of the run is number p % n of the shuffle of epoch p // n, for n rows. Step k takes the samples from
    k * global_batch_size on, so a batch may reach from one epoch into the next and is never a partial one. Its
    micro-batches are dealt to the ranks in turn: number j goes to rank j % world_size.
    """

    def __init__(
        self,
        maskable: np.ndarray,
        *,
        probability: float,
        global_batch_size: int,
        micro_batch_size: int,
        seed: int,
        start_step: int = 0,
        max_steps: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Set the range of steps and this process's share.

        Args:
            maskable: maskable tokens of each row, [n].
            probability: ``MaskingConfig.probability``.
            global_batch_size: rows of a step.
            micro_batch_size: rows that go through the model at once.
            seed: the seed of the run.
            start_step: the first step.
            max_steps: the step before which to stop, counted from step 0 (None: endless).
            rank: this process, from 0 on.
            world_size: number of processes.

        Raises:
            UserError: when the global batch does not divide into equally many micro-batches per rank.
        """
        if global_batch_size % (micro_batch_size * world_size):
            raise UserError(
                f"data.global_batch_size={global_batch_size} is not a multiple of data.micro_batch_size="
                f"{micro_batch_size} x {world_size} processes"
            )
        self.start_step = start_step
        self.max_steps = max_steps
        self._maskable = maskable
        self._masked_counts = masked_counts(int(maskable.max()), probability)
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._rank = rank
        self._world_size = world_size

    @property
    def micro_batches_per_step(self) -> int:
        """Micro-batches of this rank in a step."""
        return self._global_batch_size // (self._micro_batch_size * self._world_size)

    def __len__(self) -> int:
        """The number of this rank's micro-batches, from ``start_step`` to ``max_steps``.

        Raises:
            TypeError: when ``max_steps`` is None; ``len`` of an endless loader is asked for in vain the same way.
        """
        if self.max_steps is None:
            raise TypeError("an endless sampler has no length")
        return max(0, self.max_steps - self.start_step) * self.micro_batches_per_step

    def __iter__(self) -> Iterator[MicroBatchPlan]:
        """This rank's micro-batches, step by step."""
        step = self.start_step
        while self.max_steps is None or step < self.max_steps:
            rows, epochs = self.global_batch(step)
            global_masked = int(self._masked_counts[self._maskable[rows]].sum())
            for micro in range(self.micro_batches_per_step):
                start = (micro * self._world_size + self._rank) * self._micro_batch_size
                part = slice(start, start + self._micro_batch_size)
                yield MicroBatchPlan(step, micro, rows[part], epochs[part], global_masked)
            step += 1

    def global_batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and epochs of a step over all ranks, int64 [global_batch_size] each."""
        n = len(self._maskable)
        samples = np.arange(step * self._global_batch_size, (step + 1) * self._global_batch_size, dtype=np.int64)
        epochs, places = samples // n, samples % n
        rows = np.empty_like(samples)
        for epoch in range(epochs[0], epochs[-1] + 1):
            of_epoch = epochs == epoch
            rows[of_epoch] = _shuffle(self._seed, epoch, n)[places[of_epoch]]
        return rows, epochs


class ValidationSampler:
    """All rows once, in order; the last batch may be short. Every row is of epoch 0."""

    def __init__(self, maskable: np.ndarray, *, probability: float, batch_size: int) -> None:
        """Set the batch size.

        Args:
            maskable: maskable tokens of each row, [n].
            probability: ``MaskingConfig.probability``.
            batch_size: rows of a batch.
        """
        self._maskable = maskable
        self._masked_counts = masked_counts(int(maskable.max()), probability)
        self._batch_size = batch_size

    def __len__(self) -> int:
        """The number of batches."""
        return -(-len(self._maskable) // self._batch_size)

    def __iter__(self) -> Iterator[MicroBatchPlan]:
        """The batches; each counts as a step of its own."""
        for step in range(len(self)):
            start = step * self._batch_size
            rows = np.arange(start, min(start + self._batch_size, len(self._maskable)), dtype=np.int64)
            masked = int(self._masked_counts[self._maskable[rows]].sum())
            yield MicroBatchPlan(step, 0, rows, np.zeros_like(rows), masked)
