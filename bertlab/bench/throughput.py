"""Training throughput side by side with transformers' Trainer."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml

from bertlab.bench.config import Workload
from bertlab.data.masking import masked_count
from bertlab.errors import RunFailure, UserError
from bertlab.models.config import BertConfig
from bertlab.models.flops import training_flops
from bertlab.training.machine import peak_flops

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Measurement:
    """What one process did.

    Attributes:
        tokens_per_second: real tokens, without padding.
        peak_bytes: the largest resident memory of the process.
    """

    tokens_per_second: float
    peak_bytes: int


@dataclass(frozen=True)
class Comparison:
    """Both sides of one workload, several times in turn.

    Attributes:
        workload: what was trained.
        ours: one measurement a round.
        theirs: the same for transformers.
        flops_per_token: operations that a real token needs, head at masked positions only, for both sides.
    """

    workload: Workload
    ours: list[Measurement]
    theirs: list[Measurement]
    flops_per_token: float

    @property
    def ratio(self) -> float:
        """Our median speed over theirs."""
        return median_speed(self.ours) / median_speed(self.theirs)


def median_speed(measurements: list[Measurement]) -> float:
    """Median tokens per second."""
    return statistics.median(measurement.tokens_per_second for measurement in measurements)


def run_process(command: list[str]) -> tuple[str, int]:
    """Run a process alone to its end.

    Returns:
        Its standard output, and the largest resident memory that it had, in bytes.

    Raises:
        UserError: when it refuses its input, with its message.
        RunFailure: when it fails, with the end of what it printed.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, cwd=ROOT, text=True)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            said = errors.read()[-3000:].replace("error: ", "")
            raise UserError(said) if process.returncode == 2 else RunFailure(f"{' '.join(command)} failed:\n{said}")
        unit = 1 if sys.platform == "darwin" else 1024
        return out.read(), usage.ru_maxrss * unit


def measure_ours(workload: Workload, run_dir: Path) -> Measurement:
    """Train with our ``train.py`` and read the speed off its metrics.jsonl."""
    _, peak = run_process([sys.executable, "train.py", *workload.overrides(str(run_dir))])
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = {record["step"]: record for record in map(json.loads, lines) if "train/loss" in record}
    first, last = records[workload.warmup_steps], records[workload.warmup_steps + workload.steps]
    speed = (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])
    return Measurement(speed, peak)


def measure_theirs(workload: Workload, config_file: Path) -> Measurement:
    """Train with transformers' Trainer."""
    command = [sys.executable, "-m", "bertlab.bench.transformers_side", json.dumps(asdict(workload)), str(config_file)]
    out, peak = run_process(command)
    result = json.loads(out.splitlines()[-1])
    return Measurement(result["tokens"] / result["seconds"], peak)


def compare(workload: Workload, rounds: int) -> Comparison:
    """Measure both sides in turn, ``rounds`` times, one process after the other."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            run_dir = Path(folder) / f"run{number}"
            ours.append(measure_ours(workload, run_dir))
            theirs.append(measure_theirs(workload, run_dir / "config.yaml"))
        config = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    masked = workload.batch_size * masked_count(workload.sequence_length - 2, config["masking"]["probability"])
    model = BertConfig.from_dict(config["model"])
    flops = training_flops(model, workload.batch_size, workload.sequence_length, masked)
    return Comparison(workload, ours, theirs, flops / (workload.batch_size * workload.sequence_length))


def table(comparisons: list[Comparison], peak: float | None) -> str:
    """The results as a Markdown table.

    Args:
        comparisons: one for each row.
        peak: operations per second that the device can do; None leaves the MFU out.
    """
    lines = [
        "| shape | dropout | side | tokens/s, median (each round) | ratio | peak memory | MFU |",
        "|---|---|---|---|---|---|---|",
    ]
    for comparison in comparisons:
        for side, measurements in (("bertlab", comparison.ours), ("transformers", comparison.theirs)):
            speed = median_speed(measurements)
            rounds = ", ".join(f"{measurement.tokens_per_second:,.0f}" for measurement in measurements)
            ratio = f"{comparison.ratio:.2f} x" if side == "bertlab" else "1"
            memory = f"{max(measurement.peak_bytes for measurement in measurements) / 2**30:.2f} GiB"
            mfu = "" if peak is None else f"{speed * comparison.flops_per_token / peak:.1%}"
            workload = comparison.workload
            lines.append(
                f"| {workload.experiment} | {workload.dropout:g} | {side} | {speed:,.0f} ({rounds}) | {ratio} "
                f"| {memory} | {mfu} |"
            )
    return "\n".join(lines)


def benchmark(workloads: list[Workload], rounds: int) -> str:
    """Compare all workloads and describe the result.

    Args:
        workloads: what to train.
        rounds: how often each side trains each workload.

    Returns:
        Markdown: the conditions and the table.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = peak_flops(device, "32-true")
    comparisons = []
    for workload in workloads:
        print(f"{workload.experiment}, dropout {workload.dropout:g} ...", file=sys.stderr, flush=True)
        comparisons.append(compare(workload, rounds))
        print(f"  {comparisons[-1].ratio:.2f} x", file=sys.stderr, flush=True)
    one = workloads[0]
    peak_text = "" if peak is None else f", float32 peak {peak / 1e9:,.0f} GFLOP/s (a 2048-cubed product)"
    return (
        f"Vocabulary {one.vocab_size:,}, sequence {one.sequence_length}, batch {one.batch_size}, {one.steps} steps "
        f"after {one.warmup_steps}, {rounds} rounds in turn; {device.type}, {torch.get_num_threads()} threads"
        f"{peak_text}; torch {torch.__version__}.\n\n{table(comparisons, peak)}"
    )
