"""A laboratory for BERT encoders. Names load on first use, so that importing a config needs no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertlab.hub import load_pretrained, save_pretrained
    from bertlab.models.bert import BertForMaskedLM, BertForSequenceClassification, BertModel
    from bertlab.models.config import BertConfig

__version__ = "0.1.0"

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "__version__",
    "load_pretrained",
    "save_pretrained",
]

_HOMES = {
    "BertConfig": "bertlab.models.config",
    "BertForMaskedLM": "bertlab.models.bert",
    "BertForSequenceClassification": "bertlab.models.bert",
    "BertModel": "bertlab.models.bert",
    "load_pretrained": "bertlab.hub",
    "save_pretrained": "bertlab.hub",
}


def __getattr__(name: str) -> Any:
    """Import a public name from where it is defined (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
