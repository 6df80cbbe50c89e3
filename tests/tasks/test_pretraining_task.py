"""MaskedLMTask under a real Trainer: the gradient, the clipping, the dropout, the validation, every precision."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from bertlab.data.batch import Batch
from bertlab.data.config import MaskingConfig, TextConfig, WordPieceConfig
from bertlab.data.prepare import Prepared, prepare
from bertlab.data.pretraining import PretrainingData
from bertlab.models.bert import BertForMaskedLM
from bertlab.models.config import BertConfig
from bertlab.optim.config import ConstantConfig, OptimizerConfig
from bertlab.tasks.pretraining import MaskedLMTask

MODERN: dict[str, Any] = {
    "norm": "pre",
    "position": "rope",
    "feedforward": "gated",
    "bias": False,
    "type_vocab_size": 0,
    "pooler": False,
}
ADAMW = OptimizerConfig(lr=1e-2)
NO_WARMUP = ConstantConfig(warmup=0.0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[TextConfig, Prepared]:
    """Documents of 2 to 40 words, each a row: rows of unequal length."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    words = [a + b for a in ("ba", "de", "fi", "go", "lu", "ma") for b in ("n", "rd", "st", "lo", "mi")]
    for name, lines in (("train", 64), ("val", 33)):
        text = (" ".join(generator.choice(words, generator.integers(2, 40))) for _ in range(lines))
        (folder / f"{name}.txt").write_text("".join(f"{line} .\n" for line in text), encoding="utf-8")
    config = TextConfig(
        train_files=[str(folder / "train.txt")],
        val_files=[str(folder / "val.txt")],
        document="line",
        packing="none",
        sequence_length=32,
        global_batch_size=8,
        micro_batch_size=8,
        prepare_workers=1,
    )
    return config, prepare(config, WordPieceConfig(vocab_size=120))


def data_of(corpus: tuple[TextConfig, Prepared], *, seed: int = 3, **changes: Any) -> PretrainingData:
    config, prepared = corpus
    return PretrainingData(replace(config, **changes), MaskingConfig(), *prepared, seed=seed)


def task_of(*, dropout: float = 0.0, optimizer: OptimizerConfig = ADAMW, seed: int = 3, **model: Any) -> MaskedLMTask:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=120,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        max_position_embeddings=32,
        **model,
    )
    return MaskedLMTask(BertForMaskedLM(config), optimizer, NO_WARMUP, seed=seed, progress=lambda step: step / 100)


class Watch(Callback):
    """Keeps the losses of the micro-batches, and the gradients of every step before and after clipping."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradients: list[torch.Tensor] = []
        self.clipped: list[torch.Tensor] = []

    @staticmethod
    def gradient(task: MaskedLMTask) -> torch.Tensor:
        parts = [p.grad.flatten().double() for p in task.model.parameters() if p.grad is not None]
        return torch.cat(parts).cpu()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.gradients.append(self.gradient(pl_module))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]) * trainer.accumulate_grad_batches)
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.clipped.append(self.gradient(pl_module))


def fit(
    task: MaskedLMTask,
    batches: DataLoader[Batch],
    *,
    folder: Path,
    steps: int = 1,
    accumulation: int = 1,
    precision: Any = "32-true",
    accelerator: str = "cpu",
) -> Watch:
    watch = Watch()
    trainer = lightning.Trainer(
        accelerator=accelerator,
        devices=1,
        precision=precision,
        max_steps=steps,
        accumulate_grad_batches=accumulation,
        logger=False,
        callbacks=[watch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    trainer.fit(task, batches)
    return watch


@pytest.mark.parametrize("model", [{}, MODERN], ids=["bert", "modern"])
@pytest.mark.parametrize(("precision", "limit"), [("32-true", 2e-6), ("64-true", 1e-12)])
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_gradient_does_not_depend_on_the_split(
    corpus: tuple[TextConfig, Prepared],
    model: dict[str, Any],
    precision: str,
    limit: float,
    micro_batch_size: int,
    tmp_path: Path,
) -> None:
    loaders = {size: data_of(corpus, micro_batch_size=size).train_loader(max_steps=1) for size in (8, micro_batch_size)}
    counts = [int((batch.labels != -100).sum()) for batch in loaders[micro_batch_size]]
    assert len(set(counts)) > 1  # else a mean of means would do
    assert next(iter(loaders[8])).attention_mask is not None
    tasks = {size: task_of(**model) for size in loaders}
    gradients, losses = {}, {}
    for size, loader in loaders.items():
        watch = fit(tasks[size], loader, folder=tmp_path, accumulation=8 // size, precision=precision)
        gradients[size], losses[size] = watch.gradients[0], float(tasks[size].step_loss)
    whole, split = gradients[8], gradients[micro_batch_size]
    assert float((split - whole).norm() / whole.norm()) <= limit
    assert losses[micro_batch_size] == pytest.approx(losses[8], rel=limit * 10)


def test_loss_is_the_mean_over_the_masked_tokens_of_the_global_batch(
    corpus: tuple[TextConfig, Prepared], tmp_path: Path
) -> None:
    data = data_of(corpus, micro_batch_size=2)
    task = task_of()
    logits, labels = [], []
    with torch.no_grad():
        for batch in data.train_loader(max_steps=1):
            used = batch.labels != -100
            full = task.model(batch.input_ids, batch.attention_mask).logits.flatten(0, 1)
            logits.append(full[batch.masked_positions[used]])
            labels.append(batch.labels[used])
    expected = torch.nn.functional.cross_entropy(torch.cat(logits), torch.cat(labels))
    fit(task, data.train_loader(max_steps=1), folder=tmp_path, accumulation=4)
    assert float(task.step_loss) == pytest.approx(float(expected), rel=1e-5)


def test_clipping_and_the_norm_that_is_logged(corpus: tuple[TextConfig, Prepared], tmp_path: Path) -> None:
    for limit in (0.05, 1e6, None):
        task = task_of(optimizer=replace(ADAMW, max_grad_norm=limit))
        watch = fit(task, data_of(corpus).train_loader(max_steps=1), folder=tmp_path)
        norm = float(watch.gradients[0].norm())
        assert float(task.grad_norm) == pytest.approx(norm, rel=1e-5)
        expected = norm if limit is None else min(norm, limit)
        assert float(watch.clipped[0].norm()) == pytest.approx(expected, rel=1e-4)


def test_micro_batches_and_steps_have_their_own_dropout(corpus: tuple[TextConfig, Prepared], tmp_path: Path) -> None:
    batch = next(iter(data_of(corpus).train_loader(max_steps=1)))
    still = replace(ADAMW, lr=1e-30)  # the weights stay, and the batch is always the same: only dropout differs

    def losses(dropout: float, seed: int = 3) -> list[float]:
        task = task_of(dropout=dropout, optimizer=still, seed=seed)
        loader = DataLoader([batch] * 6, batch_size=None)
        return fit(task, loader, folder=tmp_path, steps=2, accumulation=3).losses

    plain = losses(0.0)
    assert plain == pytest.approx([plain[0]] * 6, rel=1e-6)
    dropped = losses(0.2)
    assert len(set(dropped)) == 6
    assert losses(0.2) == dropped
    assert not set(losses(0.2, seed=4)) & set(dropped)


def test_a_model_in_eval_mode_trains_with_dropout(corpus: tuple[TextConfig, Prepared], tmp_path: Path) -> None:
    losses = []
    for prepare_model in (torch.nn.Module.train, torch.nn.Module.eval):
        task = task_of(dropout=0.3)
        prepare_model(task.model)
        losses.append(fit(task, data_of(corpus).train_loader(max_steps=2), folder=tmp_path, steps=2).losses)
        assert task.model.training
    assert losses[0] == losses[1]
    without = fit(task_of(), data_of(corpus).train_loader(max_steps=2), folder=tmp_path, steps=2).losses
    assert losses[1][0] != without[0]


def validate(task: MaskedLMTask, data: PretrainingData, folder: Path) -> dict[str, float]:
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder
    )
    loader = data.val_loader()
    assert loader is not None
    trainer.validate(task, loader, verbose=False)
    return dict(task.validation)


@pytest.mark.parametrize("model", [{}, MODERN], ids=["bert", "modern"])
def test_validation_does_not_depend_on_its_batch_size(
    corpus: tuple[TextConfig, Prepared], model: dict[str, Any], tmp_path: Path
) -> None:
    task = task_of(dropout=0.5, **model)  # which validation must not use
    figures = [validate(task, data_of(corpus, val_batch_size=size), tmp_path) for size in (1, 3, 32)]
    for other in figures[1:]:
        assert other == pytest.approx(figures[0], rel=1e-5)

    # The mean over all masked tokens, by hand, from full logits.
    logits, labels = [], []
    task.model.eval()
    with torch.no_grad():
        for batch in data_of(corpus).val_loader() or []:
            used = batch.labels != -100
            full = task.model(batch.input_ids, batch.attention_mask).logits.flatten(0, 1)
            logits.append(full[batch.masked_positions[used]])
            labels.append(batch.labels[used])
    scores, targets = torch.cat(logits), torch.cat(labels)
    loss = float(torch.nn.functional.cross_entropy(scores, targets))
    assert figures[0]["val/loss"] == pytest.approx(loss, rel=1e-5)
    assert figures[0]["val/perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert figures[0]["val/masked_accuracy"] == pytest.approx(float((scores.argmax(-1) == targets).double().mean()))


def test_validation_masks_are_the_same_in_every_run(corpus: tuple[TextConfig, Prepared], tmp_path: Path) -> None:
    task = task_of()
    one, other = (validate(task, data_of(corpus, seed=seed), tmp_path) for seed in (0, 99))
    assert one == other
    assert validate(task, data_of(corpus, seed=0), tmp_path) == one


def check_one_step(corpus: tuple[TextConfig, Prepared], precision: str, accelerator: str, folder: Path) -> None:
    optimizer = replace(ADAMW, max_grad_norm=0.05)
    task = task_of(optimizer=optimizer, dropout=0.1)
    task.fused = False if precision.startswith("16") else None
    before = {name: parameter.detach().clone() for name, parameter in task.model.named_parameters()}
    data = data_of(corpus, micro_batch_size=4)
    watch = fit(
        task,
        data.train_loader(max_steps=1),
        folder=folder,
        accumulation=2,
        precision=precision,
        accelerator=accelerator,
    )
    # Half-precision gradients are scaled in half precision.
    tolerance = 0.02 if precision in ("bf16-true", "16-true") else 1e-3
    assert float(watch.gradients[0].norm()) > 0.05
    assert float(task.grad_norm) == pytest.approx(float(watch.gradients[0].norm()), rel=tolerance)
    assert float(watch.clipped[0].norm()) == pytest.approx(0.05, rel=tolerance)
    kind = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
    unchanged = []
    for name, parameter in task.model.named_parameters():
        assert parameter.dtype == kind.get(precision, torch.float32), name
        assert bool(torch.isfinite(parameter).all()), name
        if torch.equal(parameter.detach().double().cpu(), before[name].double()):
            unchanged.append(name)
    assert len(unchanged) <= 1, unchanged  # the pooler and unused heads get no gradient
    assert 3.0 < float(task.step_loss) < 7.0  # near ln(120)


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
def test_one_step_on_the_cpu(corpus: tuple[TextConfig, Prepared], precision: str, tmp_path: Path) -> None:
    check_one_step(corpus, precision, "cpu", tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true"])
def test_one_step_on_a_gpu(corpus: tuple[TextConfig, Prepared], precision: str, tmp_path: Path) -> None:
    check_one_step(corpus, precision, "gpu", tmp_path)


def test_learning_rate_follows_the_progress(corpus: tuple[TextConfig, Prepared], tmp_path: Path) -> None:
    task = task_of(optimizer=replace(ADAMW, lr=0.5))
    task.schedule_config = ConstantConfig(warmup=0.1)
    seen: list[float] = []
    original: Callable[..., None] = task.on_before_optimizer_step

    def note(optimizer: torch.optim.Optimizer) -> None:
        original(optimizer)
        seen.extend({group["lr"] for group in optimizer.param_groups})

    task.on_before_optimizer_step = note  # type: ignore[method-assign]
    fit(task, data_of(corpus, micro_batch_size=4).train_loader(max_steps=3), folder=tmp_path, steps=3, accumulation=2)
    assert seen == pytest.approx([0.0, 0.05, 0.1])
