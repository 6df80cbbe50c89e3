"""The throughput benchmark: its arithmetic, its refusals, and a real run of both sides."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from bertlab.bench.config import Workload
from bertlab.bench.throughput import Comparison, Measurement, median_speed, run_process, table
from bertlab.cli.app import CONFIGS
from bertlab.cli.schema import register_schemas
from bertlab.cli.validate import to_run_config
from bertlab.errors import RunFailure, UserError

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = Workload("mlm_tiny", 0.1, batch_size=32, sequence_length=128, vocab_size=30522, warmup_steps=5, steps=20)


def measured(*speeds: float, gib: float = 1.0) -> list[Measurement]:
    return [Measurement(speed, round(gib * 2**30)) for speed in speeds]


def test_median_and_ratio() -> None:
    comparison = Comparison(WORKLOAD, measured(9000, 1000, 6000), measured(1500, 1000, 9), 1e6)
    assert median_speed(comparison.ours) == 6000
    assert median_speed(measured(1, 3)) == 2
    assert comparison.ratio == pytest.approx(6.0)


def test_table() -> None:
    ours = measured(12_000, 10_000, 11_000, gib=0.5)
    theirs = [Measurement(2000, 2**30), Measurement(2200, 3 * 2**30), Measurement(1000, 2**30)]
    comparisons = [
        Comparison(WORKLOAD, ours, theirs, flops_per_token=2e6),
        Comparison(
            dataclasses.replace(WORKLOAD, experiment="mlm_mini", dropout=0.0), theirs, ours, flops_per_token=1e6
        ),
    ]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(comparisons, 1e11).splitlines()]
    assert rows[0] == ["shape", "dropout", "side", "tokens/s, median (each round)", "ratio", "peak memory", "MFU"]
    assert rows[2] == ["mlm_tiny", "0.1", "bertlab", "11,000 (12,000, 10,000, 11,000)", "5.50 x", "0.50 GiB", "22.0%"]
    # Peak memory is the largest of the rounds.
    assert rows[3] == ["mlm_tiny", "0.1", "transformers", "2,000 (2,000, 2,200, 1,000)", "1", "3.00 GiB", "4.0%"]
    assert rows[4][:3] == ["mlm_mini", "0", "bertlab"]
    assert rows[4][4] == "0.18 x"
    assert len(rows) == 6
    assert table(comparisons, None).splitlines()[2].endswith("|  |")  # no peak, no MFU


def test_a_workload_is_a_command_line_of_train(tmp_path: Path) -> None:
    register_schemas()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = to_run_config(compose("train", WORKLOAD.overrides(str(tmp_path / "run"))))
    assert (config.model.vocab_size, config.model.hidden_size) == (30522, 128)
    assert config.model.hidden_dropout_prob == config.model.attention_probs_dropout_prob == 0.1
    assert (config.data.sequence_length, config.data.global_batch_size, config.data.micro_batch_size) == (128, 32, 32)
    assert (config.trainer.max_steps, config.trainer.max_time) == (25, None)


def test_a_process_that_fails_says_why() -> None:
    out, peak = run_process([sys.executable, "-c", "print('x' * 3); memory = b'x' * 200_000_000"])
    assert out == "xxx\n"
    # Bytes. The kernel's figure starts from what this process had when it made the other one, hence no upper bound.
    assert peak > 200_000_000
    with pytest.raises(RunFailure, match="no such luck"):
        run_process([sys.executable, "-c", "import sys; sys.exit('no such luck')"])
    with pytest.raises(UserError, match="^no such override"):  # as our commands refuse their input
        run_process(
            [sys.executable, "-c", "import sys; print('error: no such override', file=sys.stderr); sys.exit(2)"]
        )


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--experiments", "mlm_huge"], "no such experiment: mlm_huge; there are demo, mlm_base"),
        (["--steps", "7", "--warmup-steps", "2"], "a multiple of it"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--experiments", "demo", "--dropouts", "2"], "model.hidden_dropout_prob=2.0 must be"),
        (["--experiments", "mlm_base", "--batch-size", "0"], "data.global_batch_size=0"),
    ],
)
def test_refusals(arguments: list[str], fragment: str) -> None:
    command = [sys.executable, "scripts/benchmark.py", "throughput", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert fragment in next(line for line in done.stderr.splitlines() if line.startswith("error: "))


@pytest.mark.slow
def test_both_sides_for_real(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/benchmark.py", "throughput", "--experiments", "mlm_tiny", "--dropouts", "0"]
    command += ["--vocab-size", "19000", "--sequence-length", "32", "--batch-size", "4"]
    command += ["--warmup-steps", "1", "--steps", "3", "--rounds", "1"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=600,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Vocabulary 19,000, sequence 32, batch 4, 3 steps after 1, 1 rounds in turn" in done.stdout
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "mlm_tiny" in line
    ]
    assert [row[2] for row in rows] == ["bertlab", "transformers"]
    speeds = [float(row[3].split()[0].replace(",", "")) for row in rows]
    assert min(speeds) > 10
    assert float(rows[0][4].removesuffix(" x")) == pytest.approx(speeds[0] / speeds[1], rel=0.05)
    assert all(0.05 < float(row[5].removesuffix(" GiB")) < 8 for row in rows)
    assert all(0 < float(row[6].removesuffix("%")) < 100 for row in rows)
    assert not list(tmp_path.iterdir())  # nothing is left behind
