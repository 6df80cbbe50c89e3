"""Parameter groups, the optimizer and the learning-rate schedules. Names load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertlab.optim.build import build_optimizer, parameter_groups
    from bertlab.optim.schedules import lr_factor

__all__ = ["build_optimizer", "lr_factor", "parameter_groups"]

_HOMES = {
    "build_optimizer": "bertlab.optim.build",
    "lr_factor": "bertlab.optim.schedules",
    "parameter_groups": "bertlab.optim.build",
}


def __getattr__(name: str) -> Any:
    """Import a public name from where it is defined (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
