"""A real process is told to stop in the middle of its training."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("signum", "exit_code", "logger", "workers"),
    [(signal.SIGTERM, 143, "wandb", 0), (signal.SIGINT, 130, "none", 0), (signal.SIGINT, 130, "none", 2)],
)
def test_signals(
    signum: signal.Signals, exit_code: int, logger: str, workers: int, tmp_path: Path, tiny_overrides: list[str]
) -> None:
    run_dir = tmp_path / "run"
    overrides = [*tiny_overrides, f"logger={logger}", "trainer.max_steps=1000000", "checkpoint.every_n_steps=5"]
    overrides.append(f"data.num_workers={workers}")
    command = [sys.executable, "train.py", *overrides, f"run_dir={run_dir}", "trainer.progress_bar=true"]
    output = tmp_path / "output.txt"
    with output.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, start_new_session=True)
    try:
        metrics = run_dir / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.is_file() and len(metrics.read_text(encoding="utf-8").splitlines()) > 5):
            assert process.poll() is None, output.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, output.read_text(encoding="utf-8")
            time.sleep(0.05)
        if signum == signal.SIGINT:  # a terminal sends Ctrl-C to all the processes in the foreground
            os.killpg(process.pid, signum)
        else:
            process.send_signal(signum)
        assert process.wait(timeout=60) == exit_code, output.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.wait()

    printed = output.read_text(encoding="utf-8")
    assert f"error: interrupted by {signum.name}" in printed
    assert "Traceback" not in printed
    info = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    assert (info["status"], info["exit_code"]) == ("interrupted", exit_code)
    assert info["ended"]
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert records[-1]["step"] >= 6
    log = (run_dir / "train.log").read_text(encoding="utf-8")
    assert f"interrupted by {signum.name}" in log
    assert "Traceback" not in log
    assert not (run_dir / "model").exists()
    assert list((run_dir / "checkpoints").glob("step-*.ckpt"))
    if logger == "wandb":
        (folder,) = (run_dir / "wandb").glob("offline-run-*")
        command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(folder)]
        stream = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        ends = [json.loads(line)["exit"] for line in stream.splitlines() if '"type":"exit"' in line]
        assert [end["exit_code"] for end in ends] == [exit_code]


@pytest.mark.parametrize("script", ["train.py", "scripts/prepare_data.py"])
def test_sigterm_while_the_corpus_is_prepared(script: str, tmp_path: Path, tiny_overrides: list[str]) -> None:
    corpus = tmp_path / "long.txt"
    corpus.write_text("ban derd fist golo lumi mast\n" * 2_000_000, encoding="utf-8")
    cache = tmp_path / "cache"
    overrides = [f'data.train_files=["{corpus}"]', f"data.cache_dir={cache}", "data.prepare_workers=2"]
    command = [sys.executable, script, *tiny_overrides, *overrides, "tokenizer.sample_mb=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + 60
            while not any((cache / "shards").glob("*.partial/tokens*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, printed = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 143
    assert printed.splitlines()[-1] == "error: interrupted by SIGTERM"
    assert "Traceback" not in printed
