"""``python scripts/benchmark.py throughput``: speed side by side with transformers."""

import argparse
import sys

from bertlab.cli.app import options_of, run_command
from bertlab.errors import UserError


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure side by side with transformers, one process after the other.")
    commands = parser.add_subparsers(dest="name", required=True)
    throughput = commands.add_parser("throughput", help="training: train.py against transformers' Trainer")
    throughput.add_argument("--experiments", nargs="+", default=["mlm_tiny", "mlm_mini"], help="shapes to train")
    throughput.add_argument("--dropouts", nargs="+", type=float, default=[0.0, 0.1], help="dropout probabilities")
    throughput.add_argument("--vocab-size", type=int, default=30_522)
    throughput.add_argument("--sequence-length", type=int, default=128)
    throughput.add_argument("--batch-size", type=int, default=32)
    throughput.add_argument("--warmup-steps", type=int, default=5)
    throughput.add_argument("--steps", type=int, default=20, help="measured steps; a multiple of the warm-up's")
    throughput.add_argument("--rounds", type=int, default=3, help="how often each side trains each shape")
    arguments = parser.parse_args()

    def command() -> None:
        known = options_of("experiment")
        unknown = [name for name in arguments.experiments if name not in known]
        if unknown:
            raise UserError(f"no such experiment: {', '.join(unknown)}; there are {', '.join(known)}")
        if arguments.warmup_steps < 1 or arguments.steps < 1 or arguments.steps % arguments.warmup_steps:
            raise UserError("--warmup-steps must be at least 1, and --steps a multiple of it")
        if arguments.rounds < 1:
            raise UserError("--rounds must be at least 1")
        from bertlab.bench.config import Workload
        from bertlab.bench.throughput import benchmark

        workloads = [
            Workload(
                experiment=experiment,
                dropout=dropout,
                batch_size=arguments.batch_size,
                sequence_length=arguments.sequence_length,
                vocab_size=arguments.vocab_size,
                warmup_steps=arguments.warmup_steps,
                steps=arguments.steps,
            )
            for experiment in arguments.experiments
            for dropout in arguments.dropouts
        ]
        print(benchmark(workloads, arguments.rounds))

    sys.exit(run_command(command))
