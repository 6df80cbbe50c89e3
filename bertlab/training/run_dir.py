"""The run folder: its name, and the files that say what the run was and what came of it."""

import datetime
import importlib.metadata
import platform
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from bertlab.errors import UserError, user_path
from bertlab.hub.files import write_json

PACKAGES = ("bertlab", "torch", "lightning", "transformers", "tokenizers", "datasets", "hydra-core", "wandb", "numpy")


def make_run_id(name: str) -> str:
    """A fresh id: the name, the time in UTC, and a random suffix that tells runs of the same second apart."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def check_free(run_dir: str | None) -> None:
    """Refuse a run folder that already holds something.

    Raises:
        UserError: when ``run_dir`` exists and is not an empty folder.
    """
    if run_dir is None:
        return
    path = user_path(run_dir, "run_dir")
    try:
        if path.exists() and not path.is_dir():
            raise UserError(f"run_dir={run_dir} is a file: name a folder that does not exist yet")
        if path.is_dir() and any(path.iterdir()):
            raise UserError(f"run_dir={run_dir} exists and is not empty: name another folder, or move this one away")
    except OSError as error:
        raise UserError(f"run_dir={run_dir}: {error.strerror}") from error


def git_commit() -> str | None:
    """The commit of the checkout that holds this package, with ``-dirty`` when it was changed; None elsewhere."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and (root / ".git").exists() else None


class RunDir:
    """A fresh run folder.

    Attributes:
        path: the folder.
        info: the content of run.json.
    """

    def __init__(self, run_dir: str | None, name: str, config: dict[str, Any], overrides: list[str]) -> None:
        """Create the folder with config.yaml and run.json (status ``running``).

        Args:
            run_dir: the folder; None: ``runs/<id>``.
            name: what the run is called, the first part of its id.
            config: the resolved configuration, plain types only.
            overrides: the overrides of the command line.

        Raises:
            UserError: when the folder exists and is not empty, or cannot be made.
        """
        run_id = make_run_id(name)
        check_free(run_dir)
        self.path = Path("runs") / run_id if run_dir is None else user_path(run_dir, "run_dir")
        try:
            self.path.mkdir(parents=True, exist_ok=run_dir is not None)
        except OSError as error:
            raise UserError(f"cannot make the run folder {self.path}: {error.strerror}") from error
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        (self.path / "config.yaml").write_text(text, encoding="utf-8")
        self.info: dict[str, Any] = {
            "id": run_id,
            "command": ["python", *sys.argv],
            "overrides": overrides,
            "commit": git_commit(),
            "versions": {"python": platform.python_version()}
            | {package: importlib.metadata.version(package) for package in PACKAGES},
            "host": socket.gethostname(),
            "seed": config.get("seed"),
            "wandb_id": None,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "ended": None,
            "status": "running",
            "exit_code": None,
        }
        write_json(self.path / "run.json", self.info)

    def update(self, **values: Any) -> None:
        """Change entries of run.json."""
        self.info.update(values)
        write_json(self.path / "run.json", self.info)

    def end(self, exit_code: int) -> None:
        """Write how the run ended: 0 done, 130 and 143 interrupted, anything else failed."""
        status = {0: "done", 130: "interrupted", 143: "interrupted"}.get(exit_code, "failed")
        ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.update(status=status, exit_code=exit_code, ended=ended)

    def write_summary(self, figures: dict[str, Any]) -> None:
        """Write the final figures to summary.json."""
        write_json(self.path / "summary.json", figures)
