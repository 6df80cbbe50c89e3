"""One attention function, interchangeable backends. Read ``reference.py`` first: it is the formula."""

from bertlab.ops.attention.interface import BACKENDS, Backend, attention, check_backend, resolve_backend
from bertlab.ops.attention.reference import attention_weights

__all__ = ["BACKENDS", "Backend", "attention", "attention_weights", "check_backend", "resolve_backend"]
