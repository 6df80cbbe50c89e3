"""Pure tensor functions: no modules, no configs, no state."""

# The function takes the place of the sub-package of the same name, so this import has to run with the package.
from bertlab.ops.attention import attention, attention_weights
from bertlab.ops.layout import SequenceLayout

__all__ = ["SequenceLayout", "attention", "attention_weights"]
