"""The attention contract: one signature, one table of backends, no silent fallback."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bertlab.ops.attention.reference import reference_attention
from bertlab.ops.attention.sdpa import sdpa_attention
from bertlab.ops.layout import SequenceLayout


@dataclass(frozen=True)
class Backend:
    """A way to compute attention, and what it declares to support. All support masks, biases and windows.

    Attributes:
        function: takes what ``attention`` takes, checked and with ``scale`` resolved.
        packed: whether it takes a packed layout.
        seeded_dropout: whether dropout can be a function of ``dropout_seed``.
    """

    function: Callable[..., Tensor]
    packed: bool
    seeded_dropout: bool


BACKENDS: dict[str, Backend] = {
    "reference": Backend(reference_attention, packed=True, seeded_dropout=True),
    "sdpa": Backend(sdpa_attention, packed=False, seeded_dropout=False),
}


def resolve_backend(name: str, *, packed: bool = False, seeded_dropout: bool = False) -> str:
    """Turn ``auto`` into the name of a backend, and refuse a backend that cannot do what is asked.

    Args:
        name: ``auto`` or a key of ``BACKENDS``.
        packed: whether the layout is packed.
        seeded_dropout: whether dropout is drawn from a seed.

    Returns:
        A key of ``BACKENDS``: for ``auto``, ``sdpa`` where it can and ``reference`` elsewhere.

    Raises:
        ValueError: for an unknown name, or a named backend that does not support what is asked.
    """
    if name == "auto":
        return "reference" if packed or seeded_dropout else "sdpa"
    if name not in BACKENDS:
        raise ValueError(f"attention backend {name!r} is not one of auto, {', '.join(BACKENDS)}")
    asked = {"packed": packed, "seeded_dropout": seeded_dropout}
    for feature in (feature for feature, wanted in asked.items() if wanted and not getattr(BACKENDS[name], feature)):
        able = ", ".join(other for other, entry in BACKENDS.items() if getattr(entry, feature))
        raise ValueError(f"attention backend {name!r} does not support {feature}; these do: {able}")
    return name


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: SequenceLayout | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Scaled dot-product attention, softmax(Q K^T * scale + bias) V (Vaswani et al., 2017, equation 1).

    Args:
        q: queries ``[b, h, i, d]``, or ``[t, h, d]`` with a packed layout.
        k: keys ``[b, h, j, d]``, or ``[t, h, d]``.
        v: values ``[b, h, j, d]``, or ``[t, h, d]``.
        layout: padded or packed sequences; None: no padding. Not together with ``mask``.
        mask: bool or 0/1 integers, true where a query may attend to a key: ``[b, j]``, ``[b, i, j]`` or ``[b, h, i,
            j]``. No mask means that everything may be attended to; it never means causal.
        bias: floats added to the scaled scores, broadcastable to ``[b, h, i, j]``.
        scale: factor of the scores; None: ``1 / sqrt(d)``.
        dropout_p: probability of dropping an attention weight; the caller passes 0 outside training.
        dropout_seed: makes dropout a function of (seed, b, h, i, j); None: drawn from torch's generator.
        window: total width of a sliding window in tokens: query ``i`` sees the keys with ``|i - j| <= window // 2``.
        backend: ``auto``, ``reference`` or ``sdpa``.

    Returns:
        ``[b, h, i, d]`` or ``[t, h, d]``. A query that may attend to nothing gives zeros, and zero gradients.

    Raises:
        ValueError: for layout and mask together, shapes that do not fit, a floating mask, a rate outside [0, 1), or a
            backend that does not support what is asked.
    """
    packed = layout is not None and layout.is_packed
    if layout is not None and mask is not None:
        raise ValueError("give layout or mask, not both")
    axes = "[t, h, d]" if packed else "[b, h, i, d]"
    if not q.dim() == k.dim() == v.dim() == (3 if packed else 4):
        raise ValueError(f"q, k and v must be {axes}, not {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    if k.shape != v.shape or q.shape[-1] != k.shape[-1] or (packed and q.shape != k.shape):
        raise ValueError(f"q, k and v do not fit together: {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p={dropout_p} must be at least 0 and below 1")
    if window is not None and window < 1:
        raise ValueError(f"window={window} must be at least 1")
    name = resolve_backend(backend, packed=packed, seeded_dropout=dropout_p > 0.0 and dropout_seed is not None)
    return BACKENDS[name].function(
        q,
        k,
        v,
        layout=layout,
        mask=mask,
        bias=bias,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        window=window,
    )
