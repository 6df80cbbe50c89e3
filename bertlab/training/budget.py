"""The budget of a run: steps or the clock, and how much of it is used."""

import time
from collections.abc import Callable


class Budget:
    """Steps, seconds or both; with seconds the progress follows the clock and the steps are only a cap.

    The clock is read once per optimizer step, by ``tick``: everything that depends on it within a step sees one value.
    """

    def __init__(
        self, max_steps: int | None, max_seconds: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make a budget that has not begun.

        Args:
            max_steps: optimizer steps; None: no limit.
            max_seconds: wall-clock seconds; None: no limit.
            clock: gives the time in seconds; tests pass their own.
        """
        assert max_steps is not None or max_seconds is not None
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.clock = clock
        self.elapsed = 0.0
        self._began: float | None = None

    def start(self) -> None:
        """Let the clock run."""
        self._began = self.clock()

    def seconds(self) -> float:
        """Seconds since the start, now."""
        return self.elapsed if self._began is None else self.clock() - self._began

    def tick(self) -> float:
        """Read the clock and keep the reading in ``elapsed``."""
        self.elapsed = self.seconds()
        return self.elapsed

    def stop(self) -> None:
        """Stop the clock: ``elapsed`` stays as it is."""
        self.tick()
        self._began = None

    def progress(self, step: int) -> float:
        """The used share of the budget after ``step`` optimizer steps, in [0, 1], by the last ``tick``."""
        if self.max_seconds is not None:
            return min(self.elapsed / self.max_seconds, 1.0)
        assert self.max_steps is not None
        return min(step / self.max_steps, 1.0)

    @property
    def out_of_time(self) -> bool:
        """Whether the wall-clock budget was used up at the last ``tick``."""
        return self.max_seconds is not None and self.elapsed >= self.max_seconds
