"""Floating-point operations of a training step, for the model FLOPs utilisation (MFU, Chowdhery et al., 2022)."""

from bertlab.models.config import BertConfig


def training_flops(config: BertConfig, num_rows: int, length: int, num_masked: int) -> float:
    """Multiplications and additions of one forward and backward pass, counting only what the result needs.

    A product of ``[n, a]`` and ``[a, b]`` counts ``2 n a b``; the backward pass counts twice the forward pass.
    Embedding look-ups, norms, softmax and what checkpointing computes again are left out.

    Args:
        config: shape of the model, with ``vocab_size`` set.
        num_rows: ``b``.
        length: ``i``.
        num_masked: ``m``, the positions for which the head computes logits.

    Returns:
        Operations of the micro-batch.
    """
    assert config.vocab_size is not None
    e, f = config.hidden_size, config.intermediate_size
    tokens = num_rows * length
    projections = 2 * tokens * 4 * e * e
    scores = 2 * 2 * tokens * length * e
    feedforward = 2 * tokens * (3 if config.feedforward == "gated" else 2) * e * f
    head = 2 * num_masked * (e * e + e * config.vocab_size)
    return 3.0 * (config.num_hidden_layers * (projections + scores + feedforward) + head)
