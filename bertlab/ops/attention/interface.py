"""The attention contract: one signature, one table of backends, no silent fallback."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bertlab.ops.attention.reference import reference_attention
from bertlab.ops.attention.sdpa import sdpa_attention
from bertlab.ops.layout import SequenceLayout


@dataclass(frozen=True)
class Backend:
    """A way to compute attention, and what it declares to support.

    All of them take masks, biases, windows, unseeded dropout, every floating type and every device.

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


def check_backend(name: str) -> str:
    """The same name, if it is ``auto`` or a backend.

    Raises:
        ValueError: for an unknown name.
    """
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"attention backend {name!r} is not one of auto, {', '.join(BACKENDS)}")
    return name


def resolve_backend(name: str, *, packed: bool = False, seeded_dropout: bool = False, cpu_dropout: bool = False) -> str:
    """Turn ``auto`` into the name of a backend, and refuse a backend that cannot do what is asked.

    Args:
        name: ``auto`` or a key of ``BACKENDS``.
        packed: whether the layout is packed.
        seeded_dropout: whether dropout is drawn from a seed.
        cpu_dropout: whether there is dropout, on the CPU. torch has no fused kernel for it and computes the formula in
            steps, of which it keeps more than ``reference`` does.

    Returns:
        A key of ``BACKENDS``: for ``auto``, ``sdpa`` where it has a fused kernel and ``reference`` elsewhere.

    Raises:
        ValueError: for an unknown name, or a named backend that does not support what is asked.
    """
    if check_backend(name) == "auto":
        return "reference" if packed or seeded_dropout or cpu_dropout else "sdpa"
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
        bias: floats added to the scaled scores, broadcastable to ``[b, h, i, j]``; finite (who may not be attended to
            is said by ``mask``).
        scale: factor of the scores; None: ``1 / sqrt(d)``.
        dropout_p: probability of dropping an attention weight; the caller passes 0 outside training.
        dropout_seed: makes dropout a function of (seed, b, h, i, j); None: drawn from torch's generator.
        window: total width of a sliding window in tokens: query ``i`` sees the keys with ``|i - j| <= window // 2``.
        backend: ``reference``, ``sdpa``, or ``auto``: see ``resolve_backend``.

    Returns:
        ``[b, h, i, d]`` or ``[t, h, d]``. A query that may attend to nothing gives zeros, and zero gradients.

    Raises:
        ValueError: for layout and mask together, shapes that do not fit, a floating mask, a bias that is not floating,
            a rate outside [0, 1), or a backend that does not support what is asked.
    """
    packed = layout is not None and layout.is_packed
    if layout is not None and mask is not None:
        raise ValueError("give layout or mask, not both")
    axes = "[t, h, d]" if packed else "[b, h, i, d]"
    if not q.dim() == k.dim() == v.dim() == (3 if packed else 4):
        raise ValueError(f"q, k and v must be {axes}, not {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    same = q.shape == k.shape if packed else (*q.shape[:2], q.shape[3]) == (*k.shape[:2], k.shape[3])
    if k.shape != v.shape or not same:
        raise ValueError(f"q, k and v do not fit together: {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    if bias is not None:
        if not bias.is_floating_point():
            raise ValueError(f"a bias holds floats that are added to the scores, not {bias.dtype}: masks go in mask=")
        pairs = [1, q.shape[1], q.shape[0], k.shape[0]] if packed else [*q.shape[:3], k.shape[2]]
        if bias.dim() > 4 or any(n not in (1, whole) for n, whole in zip(bias.shape[::-1], pairs[::-1], strict=False)):
            raise ValueError(f"a bias {list(bias.shape)} does not fit [b, h, i, j] = {pairs}")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p={dropout_p} must be at least 0 and below 1")
    if window is not None and window < 1:
        raise ValueError(f"window={window} must be at least 1")
    name = resolve_backend(
        backend,
        packed=packed,
        seeded_dropout=dropout_p > 0.0 and dropout_seed is not None,
        cpu_dropout=dropout_p > 0.0 and q.device.type == "cpu",
    )
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
