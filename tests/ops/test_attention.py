"""Every backend of the table against the textbook formula in float64, and the formula against plain loops."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertlab.ops import SequenceLayout, attention, attention_weights
from bertlab.ops.attention import BACKENDS, resolve_backend

# How far a backend may be from the formula in float64, by the type of its inputs (of which bfloat16 has 8 bits).
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}
MASKS = ["none", "keys", "keys_int", "pairs", "heads", "layout", "layout_int"]
PACKED = [name for name, backend in BACKENDS.items() if backend.packed]
SEEDED = [name for name, backend in BACKENDS.items() if backend.seeded_dropout]


def by_loops(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(Q K^T * scale + bias) V, one number at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b, h, i in product(*map(range, q.shape[:3])):
        scores = {}
        for j in range(k.shape[2]):
            if allowed[b, h, i, j]:
                scores[j] = scale * sum(x * y for x, y in zip(q[b, h, i].tolist(), k[b, h, j].tolist(), strict=True))
                if bias is not None:
                    scores[j] += float(bias.expand(allowed.shape)[b, h, i, j])
        total = sum(math.exp(score) for score in scores.values())
        for j, score in scores.items():
            out[b, h, i] += math.exp(score) / total * v[b, h, j]
    return out


def make_mask(kind: str, b: int, h: int, i: int, j: int, generator: torch.Generator) -> tuple[dict[str, Any], Tensor]:
    """The arguments for ``attention``, and who may attend to whom: bool [b, h, i, j]."""
    shape = {"pairs": (b, i, j), "heads": (b, h, i, j)}.get(kind, (b, j))
    drawn = torch.rand(shape, generator=generator) < 0.6
    if kind == "none":
        return {}, torch.ones(b, h, i, j, dtype=torch.bool)
    whole = {2: drawn[:, None, None], 3: drawn.view(b, 1, *drawn.shape[1:]), 4: drawn}[drawn.dim()].expand(b, h, i, j)
    given_mask = drawn.long() if kind.endswith("int") else drawn
    if kind.startswith("layout"):
        return {"layout": SequenceLayout.padded(given_mask)}, whole
    return {"mask": given_mask}, whole


def run(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, **arguments: Any) -> list[Tensor]:
    """The output and the gradients of q, k, v."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attention(*inputs, **arguments)
    return [out.detach(), *torch.autograd.grad((out * weight.to(out.dtype)).sum(), inputs)]


def assert_near(got: list[Tensor], wanted: list[Tensor], dtype: torch.dtype) -> None:
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == dtype
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours.double(), theirs.double(), atol=TOLERANCE[dtype] * scale, rtol=0.0)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    sizes = [draw(st.integers(1, high)) for high in (3, 4, 9, 9, 8)]
    return {
        "sizes": sizes,
        "mask": draw(st.sampled_from(MASKS)),
        "bias": draw(st.sampled_from([None, (3, 3), (1, 3), (2, 2)])),
        "window": draw(st.sampled_from([None, 1, 2, 3, 6])),
        "scale": draw(st.sampled_from([None, 0.3])),
        "seed": draw(st.integers(0, 10_000)),
    }


def make_problem(problem: dict[str, Any], dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Any], Tensor]:
    b, h, i, j, d = problem["sizes"]
    generator = torch.Generator().manual_seed(problem["seed"])
    tensors = [torch.randn(b, h, n, d, generator=generator).to(dtype) for n in (i, j, j, i)]
    arguments, allowed = make_mask(problem["mask"], b, h, i, j, generator)
    if problem["window"]:
        arguments["window"] = problem["window"]
        near = (torch.arange(i)[:, None] - torch.arange(j)).abs() <= problem["window"] // 2
        allowed = allowed & near
    if problem["bias"]:
        full = {3: (1, h, i, j), 1: (h, i, j), 2: (i, j)}[problem["bias"][0]]
        arguments["bias"] = torch.randn(full, generator=generator).to(dtype)
    if problem["scale"]:
        arguments["scale"] = problem["scale"]
    return tensors, arguments, allowed


@given(problems())
@settings(max_examples=60)
def test_the_reference_is_the_formula(problem: dict[str, Any]) -> None:
    (q, k, v, _), arguments, allowed = make_problem(problem, torch.float64)
    scale = arguments.get("scale", q.shape[-1] ** -0.5)
    wanted = by_loops(q, k, v, allowed, arguments.get("bias"), scale)
    got = attention(q, k, v, backend="reference", **arguments)
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0.0)


@given(problems())
@settings(max_examples=15)
def test_the_gradient_of_the_reference(problem: dict[str, Any]) -> None:
    (q, k, v, _), arguments, _ = make_problem(problem, torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    if "bias" in arguments:
        inputs.append(arguments.pop("bias").requires_grad_())

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return attention(q, k, v, bias=bias, backend="reference", **arguments)

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@given(problem=problems())
@settings(max_examples=40)
def test_backends_agree_with_the_reference(backend: str, dtype: torch.dtype, problem: dict[str, Any]) -> None:
    tensors, arguments, _ = make_problem(problem, dtype)
    got = run(*tensors, backend=backend, **arguments)
    exact = {name: value.double() if name == "bias" else value for name, value in arguments.items()}
    wanted = run(*(x.double() for x in tensors), backend="reference", **exact)
    assert_near(got, wanted, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bias_is_trained(backend: str) -> None:
    torch.manual_seed(0)
    q, k, v, weight = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(4))
    mask = torch.rand(2, 5, 5) < 0.7
    gradients = []
    for name in (backend, "reference"):
        bias = torch.linspace(-1, 1, 75, dtype=torch.float64).view(3, 5, 5).requires_grad_()
        (attention(q, k, v, mask=mask, bias=bias, backend=name) * weight).sum().backward()
        gradients.append(bias.grad)
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("backend", PACKED)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), heads=st.integers(1, 3))
@settings(max_examples=25)
def test_packed_sequences_are_what_they_are_alone(
    backend: str, window: int | None, lengths: list[int], heads: int
) -> None:
    torch.manual_seed(sum(lengths))
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # [b, i]
    padded = [torch.randn(len(lengths), heads, max(lengths), 4, dtype=torch.float64) for _ in range(4)]
    padded[3] = padded[3] * real[:, None, :, None]  # nothing is asked of the padding
    packed = [x.transpose(1, 2)[real] for x in padded]  # [t, h, d]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    got = run(*packed, layout=SequenceLayout.packed(cu_seqlens), window=window, backend=backend)
    wanted = run(*padded, layout=SequenceLayout.padded(real), window=window, backend="reference")
    assert_near(got, [x.transpose(1, 2)[real] for x in wanted], torch.float64)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_without_keys_gives_zeros(backend: str, with_bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 2, 4, 3).to(dtype) for _ in range(4)]
    bias = torch.randn(2, 4, 4).to(dtype) if with_bias else None
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[0, 2] = False  # one query of one row
    mask[1] = False  # a whole row
    out, dq, dk, dv = run(*tensors, mask=mask, bias=bias, backend=backend)
    assert all(x.isfinite().all() for x in (out, dq, dk, dv))
    for x in (out, dq):
        assert (x[0, :, 2] == 0).all()
        assert (x[1] == 0).all()
        assert (x[0, :, [0, 1, 3]] != 0).any(dim=-1).all()
    assert (dk[1] == 0).all()
    assert (dv[1] == 0).all()
    with torch.no_grad():  # large inputs overflow nothing
        huge = attention(tensors[0] * 100, tensors[1] * 100, tensors[2], mask=mask, bias=bias, backend=backend)
    assert huge.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_key_that_nobody_sees_changes_nothing(backend: str) -> None:
    torch.manual_seed(0)
    q, k, v, weight = (torch.randn(1, 2, 5, 3) for _ in range(4))
    layout = SequenceLayout.padded(torch.tensor([[1, 1, 1, 0, 0]]))
    out, dq, dk, dv = run(q, k, v, weight, layout=layout, backend=backend)
    k[:, :, 3:], v[:, :, 3:] = 1e4, -1e4
    again = run(q, k, v, weight, layout=layout, backend=backend)
    for before, after in zip((out, dq), again, strict=False):
        torch.testing.assert_close(before, after, atol=1e-6, rtol=0.0)
    assert (dk[:, :, 3:] == 0).all()
    assert (dv[:, :, 3:] == 0).all()


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_no_mask_is_not_causal(backend: str) -> None:
    torch.manual_seed(0)
    q, k, v, _ = (torch.randn(1, 1, 6, 4) for _ in range(4))
    before = attention(q, k, v, backend=backend)
    v[:, :, -1] += 1.0
    changed = (attention(q, k, v, backend=backend) - before).abs().amax(dim=-1)
    assert (changed > 1e-4).all()  # the first query sees the last key, too


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("backend", "seed"), [*((name, None) for name in BACKENDS), *((name, 7) for name in SEEDED)])
def test_dropout_drops_weights_at_its_rate_and_scales_the_rest(backend: str, seed: int | None, masked: bool) -> None:
    torch.manual_seed(0)
    b, h, i, j, p = 4, 3, 50, 40, 0.3
    # Equal scores, and an identity matrix for the values: the output is the weights, 1 / j where nothing is dropped.
    q, k = torch.zeros(b, h, i, j), torch.zeros(b, h, j, j)
    v = torch.eye(j).expand(b, h, j, j)
    mask = torch.arange(j).expand(b, j) < 30 if masked else None
    keys = 30 if masked else 40
    weights = attention(q, k, v, mask=mask, dropout_p=p, dropout_seed=seed, backend=backend)[..., :keys]
    dropped = weights == 0
    torch.testing.assert_close(weights[~dropped], torch.full((int((~dropped).sum()),), 1 / keys / (1 - p)))
    count = dropped.numel()
    deviation = math.sqrt(p * (1 - p) / count)
    assert abs(dropped.float().mean().item() - p) < 5 * deviation
    assert abs(weights.sum(-1).mean().item() - 1.0) < 5 * deviation / (1 - p)
    # No head, query or key is preferred.
    for axis in range(4):
        rates = dropped.float().mean(dim=[other for other in range(4) if other != axis])
        assert (rates - p).abs().max() < 6 * math.sqrt(p * (1 - p) * len(rates) / count)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_repeats_with_the_generator(backend: str) -> None:
    q, k, v, weight = (torch.randn(2, 2, 8, 4) for _ in range(4))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(run(q, k, v, weight, dropout_p=0.5, backend=backend))
    assert all(torch.equal(x, y) for x, y in zip(results[0], results[1], strict=True))
    assert not torch.equal(results[0][0], results[2][0])
    assert torch.equal(attention(q, k, v, dropout_p=0.0, backend=backend), attention(q, k, v, backend=backend))


@pytest.mark.parametrize("backend", SEEDED)
def test_seeded_dropout_is_a_function_of_its_seed(backend: str) -> None:
    q, k, v, weight = (torch.randn(3, 2, 8, 4, dtype=torch.float64) for _ in range(4))
    arguments = {"dropout_p": 0.4, "backend": backend}
    whole = run(q, k, v, weight, dropout_seed=11, **arguments)
    torch.manual_seed(99)
    assert all(
        torch.equal(x, y) for x, y in zip(whole, run(q, k, v, weight, dropout_seed=11, **arguments), strict=True)
    )
    assert not torch.equal(whole[0], attention(q, k, v, dropout_seed=12, **arguments))
    # What is dropped at (b, h, i, j) does not depend on how many other rows there are.
    part = run(q[:2], k[:2], v[:2], weight[:2], dropout_seed=11, **arguments)
    assert_near(part, [x[:2] for x in whole], torch.float64)


@given(problems())
@settings(max_examples=30)
def test_the_weights_are_those_of_the_output(problem: dict[str, Any]) -> None:
    (q, k, v, _), arguments, allowed = make_problem(problem, torch.float32)
    weights = attention_weights(q, k, **arguments)
    torch.testing.assert_close(weights.sum(-1), allowed.any(-1).expand(weights.shape[:-1]).float())
    assert (weights[~allowed.expand(weights.shape)] == 0).all()
    torch.testing.assert_close(weights @ v, attention(q, k, v, **arguments), atol=1e-5, rtol=0.0)


def test_the_weights_are_precise_in_half_precision() -> None:
    q, k = (torch.randn(1, 2, 5, 4, dtype=torch.bfloat16) for _ in range(2))
    weights = attention_weights(q, k)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 5))


Q = torch.zeros(2, 3, 4, 5)
T = torch.zeros(6, 3, 5)
KEYS = torch.ones(2, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("tensors", "arguments", "words"),
    [
        ((Q, Q, Q), {"mask": KEYS, "layout": SequenceLayout.padded(KEYS)}, "give layout or mask, not both"),
        ((Q, Q, Q), {"mask": KEYS.float()}, "booleans or 0/1 integers"),
        ((Q, Q, Q), {"mask": KEYS[0]}, r"\[b, j\], \[b, i, j\] or \[b, h, i, j\]"),
        ((Q, Q, Q), {"mask": KEYS[:, :3]}, "does not fit"),
        ((Q, Q, Q), {"mask": KEYS[:, :1]}, "does not fit"),
        ((Q, Q, Q), {"mask": KEYS[:, None].expand(2, 3, 4)}, "does not fit"),
        ((Q, Q, Q), {"layout": SequenceLayout.padded(KEYS[:, :3])}, "does not fit"),
        ((Q, Q, Q), {"mask": KEYS[:1].expand(3, 4)}, "does not fit"),
        ((Q[:1], Q[:1], Q[:1]), {"mask": KEYS}, "does not fit"),
        ((Q[0], Q[0], Q[0]), {}, r"must be \[b, h, i, d\]"),
        ((Q, Q, Q), {"layout": SequenceLayout.packed(torch.tensor([0, 4]))}, r"must be \[t, h, d\]"),
        ((Q, Q, Q[..., :2, :]), {}, "do not fit together"),
        ((Q[..., :2], Q, Q), {}, "do not fit together"),
        ((Q, Q, Q), {"dropout_p": 1.0}, "dropout_p=1.0"),
        ((Q, Q, Q), {"dropout_p": -0.1}, "dropout_p=-0.1"),
        ((Q, Q, Q), {"window": 0}, "window=0"),
        ((Q, Q[:, :1], Q[:, :1]), {}, "do not fit together"),
        ((Q, Q[:1], Q[:1]), {}, "do not fit together"),
        ((Q, Q, Q), {"bias": torch.ones(Q.shape[2], Q.shape[2], dtype=torch.bool)}, "masks go in mask="),
        ((Q, Q, Q), {"bias": torch.ones(5, *Q.shape[1:3], Q.shape[2])}, "does not fit"),
        (
            (T, T, T),
            {"backend": "reference", "layout": SequenceLayout.packed(torch.tensor([0, len(T) - 1]))},
            "ends at",
        ),
        ((Q, Q, Q), {"backend": "flash"}, "'flash' is not one of auto, reference, sdpa"),
        ((T, T, T), {"backend": "sdpa", "layout": SequenceLayout.packed(torch.tensor([0, 6]))}, "not support packed"),
        ((Q, Q, Q), {"backend": "sdpa", "dropout_p": 0.1, "dropout_seed": 1}, "does not support seeded_dropout"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused(backend: str, tensors: tuple, arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention(*tensors, **{"backend": "reference" if "packed" in str(arguments) else backend, **arguments})


def test_auto_takes_a_backend_that_can() -> None:
    assert resolve_backend("auto") == "sdpa"
    assert resolve_backend("auto", cpu_dropout=True) == "reference"  # torch has no fused kernel for it
    assert resolve_backend("sdpa", cpu_dropout=True) == "sdpa"  # asked for by name, torch's own steps do it
    for packed, seeded in product([False, True], repeat=2):
        chosen = BACKENDS[resolve_backend("auto", packed=packed, seeded_dropout=seeded)]
        assert chosen.packed or not packed
        assert chosen.seeded_dropout or not seeded
    out = attention(Q, Q, Q, dropout_p=0.5, dropout_seed=3)
    assert out.shape == Q.shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_does_not_overflow(backend: str) -> None:
    q = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)  # q.k is 102,400; float16 ends at 65,504
    out = attention(q, q, q, backend=backend)
    torch.testing.assert_close(out, q, rtol=1e-2, atol=0)
    assert attention_weights(q, q).isfinite().all()
