"""Masking: exact properties, and the distributions it promises, tested with chi-square."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bertlab.data import MaskingConfig, mask_tokens, masked_count
from bertlab.data.masking import _fill_counts, _spans, masked_counts

UNITS = ("token", "word", "span")
MASK = 20
SMALL = MaskingConfig(vocab_size=50, mask_token_id=MASK, special_token_ids=(0, 7, 20, 21, 49))
BERT = MaskingConfig(vocab_size=30_522, mask_token_id=103, special_token_ids=(0, 100, 101, 102, 103))
# Every p-value below is of one fixed sample, so a test passes always or never; 0.001 is what a right implementation
# fails once in a thousand choices of the sample.
ALPHA = 1e-3


def is_special(ids: Tensor, config: MaskingConfig) -> Tensor:
    return torch.isin(ids, torch.tensor(config.special_token_ids))


def word_ids_of(word_starts: Tensor, maskable: Tensor) -> Tensor:
    return word_starts.long().cumsum(1).masked_fill(~maskable, -1)


def actions(ids: Tensor, labels: Tensor, mask_id: int) -> Tensor:
    """0 where a token became [MASK], 1 where it became another token, 2 where it was kept, -1 where not chosen."""
    action = torch.where(ids == mask_id, 0, torch.where(ids != labels, 1, 2))
    return torch.where(labels == -100, -1, action)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of mask_tokens: any rows over the small vocabulary, words of any length, separators anywhere."""
    b, width = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    input_ids = torch.from_numpy(generator.integers(0, 50, (b, width)))
    maskable = ~is_special(input_ids, SMALL) & torch.from_numpy(generator.random((b, width)) < draw(st.floats(0, 1)))
    starts = torch.from_numpy(generator.random((b, width)) < draw(st.floats(0, 1)))
    config = replace(SMALL, unit=draw(st.sampled_from(UNITS)), probability=draw(st.floats(0.01, 1.0)))
    return {
        "input_ids": input_ids,
        "maskable": maskable,
        "seed": draw(st.integers(0, 2**63)),
        "epoch": torch.from_numpy(generator.integers(0, 1000, b)),
        "index": torch.from_numpy(generator.integers(0, 2**40, b)),
        "config": config,
        "word_ids": word_ids_of(starts, maskable),
    }


# ---------------------------------------------------------------------------------------------------------------------
# What holds of every row
# ---------------------------------------------------------------------------------------------------------------------


@given(batches())
@settings(max_examples=300, deadline=None)
def test_exactly_masked_count_ordinary_tokens_are_predicted(batch: dict[str, Any]) -> None:
    input_ids, maskable, config = batch["input_ids"], batch["maskable"], batch["config"]
    before = input_ids.clone()
    ids, labels = mask_tokens(**batch)
    chosen = labels != -100

    assert chosen.sum(1).tolist() == [masked_count(n, config.probability) for n in maskable.sum(1).tolist()]
    assert not (chosen & ~maskable).any()
    assert torch.equal(labels[chosen], input_ids[chosen])
    assert torch.equal(ids[~chosen], input_ids[~chosen])
    replaced = ids[chosen & (ids != input_ids) & (ids != MASK)]
    assert not is_special(replaced, config).any()
    assert torch.equal(input_ids, before)


@given(batches(), st.integers(0, 30), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_row_is_masked_the_same_way_in_every_batch(batch: dict[str, Any], padding: int, random: Any) -> None:
    ids, labels = mask_tokens(**batch)
    b, width = ids.shape

    picked = [random.randrange(b) for _ in range(random.randint(1, 6))]
    per_token, per_row = ("input_ids", "maskable", "word_ids"), ("epoch", "index")
    fill = {"input_ids": 0, "maskable": False, "word_ids": -1}
    other = dict(batch)
    for name in per_token:
        other[name] = torch.nn.functional.pad(batch[name][picked], (0, padding), value=fill[name])
    for name in per_row:
        other[name] = batch[name][picked]
    other_ids, other_labels = mask_tokens(**other)
    assert torch.equal(other_ids[:, :width], ids[picked])
    assert torch.equal(other_labels[:, :width], labels[picked])
    assert (other_labels[:, width:] == -100).all()

    alone = {name: batch[name][:1] for name in (*per_token, *per_row)}
    alone["epoch"] = int(batch["epoch"][0])
    alone_ids, alone_labels = mask_tokens(**{**batch, **alone})
    assert torch.equal(alone_ids, ids[:1])
    assert torch.equal(alone_labels, labels[:1])


@given(batches())
@settings(max_examples=300, deadline=None)
def test_words_are_masked_whole_unless_the_last_is_cut(batch: dict[str, Any]) -> None:
    batch["config"] = replace(batch["config"], unit="word")
    _, labels = mask_tokens(**batch)
    for row_words, row_chosen in zip(batch["word_ids"], labels != -100, strict=True):
        cut = []
        untouched = []
        for word in row_words[row_words >= 0].unique():
            chosen = row_chosen[row_words == word].tolist()
            if not any(chosen):
                untouched.append(len(chosen))
            elif not all(chosen):
                cut.append(sum(chosen))
                assert chosen == sorted(chosen, reverse=True), "a cut word keeps its first tokens"
        assert len(cut) <= 1
        # A word is cut only when no other would have fitted in what was left.
        assert all(length > left for left in cut for length in untouched)


@pytest.mark.parametrize(
    ("count", "outcomes"),
    [
        (1, {(2,), (5,)}),  # the long word is passed over
        (4, {(1, 3, 4, 6), (1, 2, 3, 5)}),  # the long word comes first, or is cut after a single token
    ],
)
def test_a_word_may_be_scattered_and_a_token_without_a_word_is_one(count: int, outcomes: set[tuple[int, ...]]) -> None:
    word_ids = torch.tensor([[-1, 5, -1, 5, 5, -1, 5, -1]])
    maskable = torch.tensor([[False, True, True, True, True, True, True, False]])
    _, labels = mask_tokens(
        torch.full((200, 8), 30),
        maskable.expand(200, 8),
        seed=1,
        epoch=0,
        index=torch.arange(200),
        config=replace(SMALL, unit="word", probability=count / 6),
        word_ids=word_ids.expand(200, 8),
    )
    assert {tuple(row.nonzero().squeeze(1).tolist()) for row in labels != -100} == outcomes


def test_units_that_do_not_fit_are_passed_over_and_the_last_of_them_is_cut() -> None:
    rows = [0, 0, 0, 0, 1, 1, 1]
    lengths = [3, 5, 2, 4, 6, 7, 1]
    # Row 0, count 4: 3 fits and leaves 1; 5, 4 and 2 do not. Row 1, count 7: 6 fits, 7 does not, 1 does.
    assert _fill_counts([4, 0, 5, 1, 3, 6, 2], rows, lengths, [4, 7]) == [3, 0, 1, 0, 6, 0, 1]


def test_tokens_of_a_word_share_the_action_but_not_the_random_token() -> None:
    b, width = 400, 64
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(200, 30_000, (b, width), generator=generator)
    maskable = torch.ones(b, width, dtype=torch.bool)
    word_ids = torch.arange(width).expand(b, width) // 4
    for unit in ("word", "span"):
        config = replace(BERT, unit=unit, probability=0.5, mask_fraction=0.4, random_fraction=0.3)
        masked, labels = mask_tokens(
            ids, maskable, seed=3, epoch=1, index=torch.arange(b), config=config, word_ids=word_ids
        )
        action = actions(masked, labels, 103).view(b, width // 4, 4)
        whole = (action != -1).all(2)
        per_word = action[whole]
        assert len(per_word) > 2000
        assert (per_word == per_word[:, :1]).all()
        drawn = masked.view(b, width // 4, 4)[whole][per_word[:, 0] == 1]
        assert len(drawn) > 500
        assert (drawn[:, 1:] != drawn[:, :1]).float().mean() > 0.99


def test_spans_stay_between_non_maskable_tokens_and_cover_whole_words() -> None:
    b, width = 300, 60
    maskable = torch.ones(b, width, dtype=torch.bool)
    maskable[:, [0, 20, 21, 40, 59]] = False
    word_ids = word_ids_of((torch.arange(width) % 2 == 1).expand(b, width), maskable)  # two tokens a word
    spans = _spans(word_ids, maskable, torch.rand(b, width, generator=torch.Generator().manual_seed(1)).double())
    stretches = ((1, 20), (22, 40), (41, 59))
    for row in range(b):
        numbers = [set(spans[row, start:stop].tolist()) for start, stop in stretches]
        assert len(set.union(*numbers)) == sum(map(len, numbers)), "two stretches share a span"
    within_word = (word_ids[:, 1:] == word_ids[:, :-1]) & maskable[:, 1:] & maskable[:, :-1]
    assert within_word.any()
    assert (spans[:, 1:] == spans[:, :-1])[within_word].all()


@pytest.mark.parametrize("stretch", [0, 1])
def test_span_lengths_are_geometric_up_to_ten_words(stretch: int) -> None:
    # A separator in the middle: the spans after it must be drawn afresh, whatever came before.
    b, width = 4000, 121
    maskable = torch.ones(b, width, dtype=torch.bool)
    maskable[:, 60] = False
    word_ids = torch.arange(width).expand(b, width).masked_fill(~maskable, -1)
    spans = _spans(
        word_ids, maskable, torch.rand(b, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    )
    first = 61 * stretch
    # The first four spans of a stretch: at most 40 words, so the stretch's end has cut none of them.
    part = spans[:, first : first + 60]
    numbers = part - part[:, :1]
    lengths = torch.stack([(numbers == k).sum(1) for k in range(4)]).flatten()
    expected = 0.2 * 0.8 ** np.arange(10)
    expected /= expected.sum()
    observed = np.bincount(lengths.numpy(), minlength=11)[1:]
    assert len(observed) == 10
    assert stats.chisquare(observed, expected * observed.sum()).pvalue > ALPHA
    assert lengths.double().mean() == pytest.approx(3.8, abs=0.05)


def test_random_tokens_do_not_depend_on_the_text() -> None:
    maskable = torch.ones(64, 32, dtype=torch.bool)
    config = replace(BERT, mask_fraction=0.0, random_fraction=1.0)
    results = [
        mask_tokens(torch.full((64, 32), token), maskable, seed=0, epoch=0, index=torch.arange(64), config=config)
        for token in (500, 20_000)
    ]
    chosen = results[0][1] != -100
    assert torch.equal(chosen, results[1][1] != -100)
    assert torch.equal(results[0][0][chosen], results[1][0][chosen])


@pytest.mark.parametrize("unit", UNITS)
def test_seed_epoch_and_row_each_change_the_masks(unit: str) -> None:
    ids = torch.randint(200, 30_000, (1, 256), generator=torch.Generator().manual_seed(0))
    words = torch.arange(256)[None] // 2
    maskable = torch.ones(1, 256, dtype=torch.bool)
    seen = {
        tuple(
            mask_tokens(
                ids,
                maskable,
                seed=seed,
                epoch=epoch,
                index=torch.tensor([row]),
                config=replace(BERT, unit=unit),
                word_ids=words,
            )[0]
            .flatten()
            .tolist()
        )
        for seed in range(5)
        for epoch in range(5)
        for row in range(5)
    }
    assert len(seen) == 125


@pytest.mark.parametrize("unit", UNITS)
def test_rows_without_a_maskable_token_pass_through(unit: str) -> None:
    ids = torch.full((3, 9), 7)
    nothing = torch.zeros(3, 9, dtype=torch.bool)
    out, labels = mask_tokens(
        ids,
        nothing,
        seed=0,
        epoch=0,
        index=torch.arange(3),
        config=replace(SMALL, unit=unit),
        word_ids=torch.full((3, 9), -1),
    )
    assert torch.equal(out, ids)
    assert (labels == -100).all()


def test_masked_count_is_python_rounding_with_at_least_one() -> None:
    assert [masked_count(n, 0.15) for n in (0, 1, 3, 10, 30, 126, 510)] == [0, 1, 1, 2, 4, 19, 76]
    for p in (0.01, 0.15, 0.3, 0.5, 1.0):
        assert masked_counts(600, p).tolist() == [masked_count(n, p) for n in range(601)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": replace(SMALL, vocab_size=None)}, "vocab_size"),
        ({"config": replace(SMALL, mask_token_id=None)}, "mask_token_id"),
        ({"config": replace(SMALL, unit="word")}, "unit=word needs word_ids"),
        ({"config": replace(SMALL, unit="span")}, "unit=span needs word_ids"),
        ({"config": replace(SMALL, vocab_size=1)}, "all of them special"),
        ({"maskable": torch.ones(2, 7, dtype=torch.bool)}, "maskable"),
        ({"maskable": torch.ones(2, 8)}, "bool"),
        ({"index": torch.arange(3)}, "index"),
        ({"epoch": torch.arange(3)}, "epoch"),
        ({"word_ids": torch.zeros(8, dtype=torch.int64)}, "word_ids"),
        ({"input_ids": torch.full((8,), 30)}, "input_ids"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "input_ids": torch.full((2, 8), 30),
        "maskable": torch.ones(2, 8, dtype=torch.bool),
        "seed": 0,
        "epoch": 0,
        "index": torch.arange(2),
        "config": SMALL,
    }
    mask_tokens(**arguments)
    with pytest.raises(ValueError, match=message):
        mask_tokens(**{**arguments, **change})


# ---------------------------------------------------------------------------------------------------------------------
# Distributions
# ---------------------------------------------------------------------------------------------------------------------


def mask_rows(b: int, width: int, config: MaskingConfig, *, seed: int = 5, epoch: int = 0, first_row: int = 0) -> Any:
    """Mask b rows of one repeated ordinary token."""
    return mask_tokens(
        torch.full((b, width), 1000),
        torch.ones(b, width, dtype=torch.bool),
        seed=seed,
        epoch=epoch,
        index=torch.arange(first_row, first_row + b),
        config=config,
        word_ids=torch.arange(width).expand(b, width),
    )


def assert_independent(first: Tensor, second: Tensor) -> None:
    """Chi-square test of independence of two vectors of small non-negative integers."""
    table = np.zeros((int(first.max()) + 1, int(second.max()) + 1))
    np.add.at(table, (first.numpy(), second.numpy()), 1)
    assert min(table.shape) > 1
    assert stats.chi2_contingency(table).pvalue > ALPHA


def test_every_subset_of_positions_is_equally_likely() -> None:
    _, labels = mask_rows(60_000, 6, replace(BERT, probability=0.34))
    subset = ((labels != -100) * 2 ** torch.arange(6)).sum(1)
    counts = subset.bincount().numpy()
    assert np.count_nonzero(counts) == 15  # two of six
    assert stats.chisquare(counts[counts > 0]).pvalue > ALPHA


@pytest.mark.parametrize("along", ["rows", "epochs"])
def test_positions_are_uniform_over_a_row_of_bert(along: str) -> None:
    width, config = 128, BERT
    if along == "rows":
        chosen = mask_rows(20_000, width, config)[1] != -100
    else:
        chosen = (
            mask_tokens(
                torch.full((20_000, width), 1000),
                torch.ones(20_000, width, dtype=torch.bool),
                seed=5,
                epoch=torch.arange(20_000),
                index=torch.full((20_000,), 3),
                config=config,
            )[1]
            != -100
        )
    counts = chosen.sum(0).numpy()
    # Drawing k of n without replacement makes the statistic (n - k) / (n - 1) times a chi-square of n - 1 degrees.
    k = masked_count(width, config.probability)
    statistic = stats.chisquare(counts).statistic * (width - 1) / (width - k)
    assert stats.chi2(width - 1).sf(statistic) > ALPHA
    assert stats.chi2(width - 1).cdf(statistic) > ALPHA  # nor too even


def test_random_tokens_are_uniform_over_the_ordinary_vocabulary() -> None:
    config = replace(BERT, vocab_size=1500, probability=0.5, mask_fraction=0.0, random_fraction=1.0)
    ids, labels = mask_rows(5000, 128, config)
    counts = ids[labels != -100].bincount(minlength=1500).numpy()
    special = np.isin(np.arange(1500), config.special_token_ids)
    assert counts[special].sum() == 0
    assert stats.chisquare(counts[~special]).pvalue > ALPHA


@pytest.fixture(scope="module")
def actions_of_transformers() -> np.ndarray:
    """How often transformers' collator puts [MASK], a random token, and the same token."""
    from tokenizers import Tokenizer, models
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    names = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    vocabulary = {names.get(number, f"w{number}"): number for number in range(30_522)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=11)
    batch = collator([{"input_ids": [1000] * 500} for _ in range(2000)])
    action = actions(batch["input_ids"], batch["labels"], 103)
    return action[action >= 0].bincount(minlength=3).numpy()


@pytest.mark.parametrize("unit", UNITS)
def test_actions_are_distributed_as_in_transformers(unit: str, actions_of_transformers: np.ndarray) -> None:
    b, width = 40_000, 32
    tokens_in_word = 1 if unit == "token" else 4
    words = torch.arange(width).expand(b, width) // tokens_in_word
    if unit == "span":
        # One word between two separators: every span has one word, and so one independent draw of the action.
        maskable = (torch.arange(width) % 5 != 4).expand(b, width)
        words = (torch.arange(width) // 5).expand(b, width)
    else:
        maskable = torch.ones(b, width, dtype=torch.bool)
    config = replace(BERT, unit=unit, probability=0.3)
    ids, labels = mask_tokens(
        torch.full((b, width), 1000), maskable, seed=8, epoch=2, index=torch.arange(b), config=config, word_ids=words
    )
    action = actions(ids, labels, 103)
    starts = torch.ones_like(words, dtype=torch.bool)
    starts[:, 1:] = words[:, 1:] != words[:, :-1]
    ours = action[starts & (action >= 0)].bincount(minlength=3).numpy()
    assert ours.sum() > 50_000
    assert stats.chi2_contingency(np.stack([ours, actions_of_transformers])).pvalue > ALPHA
    assert stats.chisquare(ours, np.array([0.8, 0.1, 0.1]) * ours.sum()).pvalue > ALPHA


@pytest.mark.parametrize("neighbour", ["row", "epoch", "seed", "position"])
def test_masks_of_neighbours_are_independent(neighbour: str) -> None:
    b, width = 60_000, 16
    config = replace(BERT, probability=0.5, mask_fraction=0.4, random_fraction=0.3)
    shift = {"row": {"first_row": 1}, "epoch": {"epoch": 1}, "seed": {"seed": 6}, "position": {}}[neighbour]
    here, there = mask_rows(b, width, config), mask_rows(b, width, config, **shift)
    at, other = 5, 6 if neighbour == "position" else 5
    first, second = actions(*here, 103)[:, at], actions(*there, 103)[:, other]
    if neighbour != "position":  # within a row the count is fixed, so choices do repel each other
        assert_independent((first >= 0).long(), (second >= 0).long())
    both = (first >= 0) & (second >= 0)
    assert_independent(first[both], second[both])
    random = both & (first == 1) & (second == 1)
    assert random.sum() > 1000
    assert_independent(here[0][random, at] * 8 // 30_522, there[0][random, other] * 8 // 30_522)


def test_the_action_does_not_depend_on_the_choice() -> None:
    # The same draws at two rates: what is chosen at 5 % comes first in the random order, the rest of 50 % later.
    few = mask_rows(20_000, 40, replace(BERT, probability=0.05, mask_fraction=0.4, random_fraction=0.3))
    many = mask_rows(20_000, 40, replace(BERT, probability=0.5, mask_fraction=0.4, random_fraction=0.3))
    early = few[1] != -100
    action = actions(*many, 103)
    chosen = action >= 0
    assert (chosen | ~early).all()
    assert_independent(action[chosen], early[chosen].long())
    # Nor does it depend on the position, or on which random token is drawn.
    assert_independent(action[chosen], chosen.nonzero()[:, 1])
    parity = many[0][action == 1] % 2
    assert_independent(parity, chosen.nonzero()[:, 1][action[chosen] == 1])


def test_the_order_of_words_does_not_favour_a_position() -> None:
    # Words of one length that divides the count are never passed over, so each is as likely as the next.
    b, width = 30_000, 36
    words = torch.arange(width).expand(b, width) // 3
    _, labels = mask_tokens(
        torch.full((b, width), 1000),
        torch.ones(b, width, dtype=torch.bool),
        seed=0,
        epoch=0,
        index=torch.arange(b),
        config=replace(BERT, unit="word", probability=3 / 36),
        word_ids=words,
    )
    assert stats.chisquare((labels != -100)[:, ::3].sum(0).numpy()).pvalue > ALPHA
