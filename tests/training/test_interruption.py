"""A real process is told to stop in the middle of its training."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("signum", "exit_code", "logger"), [(signal.SIGTERM, 143, "wandb"), (signal.SIGINT, 130, "none")]
)
def test_signals(
    signum: signal.Signals, exit_code: int, logger: str, tmp_path: Path, tiny_overrides: list[str]
) -> None:
    run_dir = tmp_path / "run"
    overrides = [*tiny_overrides, f"logger={logger}", "trainer.max_steps=1000000", "checkpoint.every_n_steps=5"]
    command = [sys.executable, "train.py", *overrides, f"run_dir={run_dir}", "trainer.progress_bar=true"]
    output = tmp_path / "output.txt"
    with output.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT)
    try:
        metrics = run_dir / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.is_file() and len(metrics.read_text(encoding="utf-8").splitlines()) > 5):
            assert process.poll() is None, output.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, output.read_text(encoding="utf-8")
            time.sleep(0.05)
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
