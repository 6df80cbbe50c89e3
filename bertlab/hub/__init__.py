"""Models on disk: the transformers format, both ways. Names load on first use, because torch is slow to import."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertlab.hub.layouts import layout_of
    from bertlab.hub.pretrained import load_pretrained, save_pretrained

__all__ = ["layout_of", "load_pretrained", "save_pretrained"]

_HOMES = {
    "layout_of": "bertlab.hub.layouts",
    "load_pretrained": "bertlab.hub.pretrained",
    "save_pretrained": "bertlab.hub.pretrained",
}


def __getattr__(name: str) -> Any:
    """Import a public name from where it is defined (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
