"""Text to masked batches: corpus, tokenizer, shards, packing, sampler, masking. Names are loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertlab.data.batch import Batch
    from bertlab.data.config import MaskingConfig
    from bertlab.data.masking import mask_tokens, masked_count
    from bertlab.data.packing import Rows, build_rows
    from bertlab.data.pretraining import PretrainingData
    from bertlab.data.shards import TokenShards
    from bertlab.data.tokenizer import Tokenizer

__all__ = [
    "Batch",
    "MaskingConfig",
    "PretrainingData",
    "Rows",
    "TokenShards",
    "Tokenizer",
    "build_rows",
    "mask_tokens",
    "masked_count",
]

_MODULES = {
    "Batch": "batch",
    "MaskingConfig": "config",
    "PretrainingData": "pretraining",
    "Rows": "packing",
    "TokenShards": "shards",
    "Tokenizer": "tokenizer",
    "build_rows": "packing",
    "mask_tokens": "masking",
    "masked_count": "masking",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
