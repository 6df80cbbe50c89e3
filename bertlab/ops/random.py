"""Stateless random numbers: every draw is a function of a key and of counters such as epoch, row and position.

Nothing here reads or advances a generator, so a draw is the same in any process, in any order and after any restart.
"""

import hashlib

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number; torch has no arithmetic on uint64."""
    return value - (1 << 64) if value >> 63 else value


# Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators": the increment and the two multipliers
# of SplitMix64.
_INCREMENT = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def derive_seed(seed: int, purpose: str, *counters: int) -> int:
    """A seed for one purpose, unrelated to that of any other purpose or counter.

    Args:
        seed: the seed of the run.
        purpose: what the numbers are for, such as ``"shuffle"``.
        counters: further numbers that tell the draws apart, such as an epoch.

    Returns:
        63 bits as an int in [0, 2**63), which fits every seed argument of torch and numpy.
    """
    message = repr((int(seed), purpose, *map(int, counters))).encode()
    return int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little") >> 1


def hash_counters(key: int | Tensor, *counters: Tensor | int) -> Tensor:
    """63 random bits for every combination of counters.

    The last counter picks a number from a SplitMix64 stream whose seed is the hash of the counters before it, down to
    the key. The order of the counters matters.

    Args:
        key: an int in [0, 2**63), usually from ``derive_seed``, or an int64 tensor of such, which broadcasts too:
            hashes may be keys of further hashes.
        counters: integer tensors that broadcast against each other, or ints. Put those of small shape first: the work
            on a counter is done on the shape that it and its predecessors broadcast to.

    Returns:
        int64 in [0, 2**63), of the broadcast shape.
    """
    state = torch.as_tensor(key, dtype=torch.int64)
    for counter in counters:
        state = _mix(state + _INCREMENT + torch.as_tensor(counter, dtype=torch.int64) * _INCREMENT)
    return _shift_right(state, 1)


def uniform(key: int | Tensor, *counters: Tensor | int) -> Tensor:
    """Uniform numbers for every combination of counters; the arguments are those of ``hash_counters``.

    Returns:
        float64 in [0, 1), multiples of 2**-53, of the broadcast shape.
    """
    return (hash_counters(key, *counters) >> 10).double() * 2.0**-53


def _mix(state: Tensor) -> Tensor:
    """SplitMix64's bijection of 64 bits; int64 products wrap around as unsigned ones do."""
    state = (state ^ _shift_right(state, 30)) * _MULTIPLIER_1
    state = (state ^ _shift_right(state, 27)) * _MULTIPLIER_2
    return state ^ _shift_right(state, 31)


def _shift_right(state: Tensor, bits: int) -> Tensor:
    """Shift zeros in from the left; ``>>`` on int64 copies the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
