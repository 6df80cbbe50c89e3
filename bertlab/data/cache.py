"""Folders that are built once and kept: under a key, complete or not there at all, with checksums."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bertlab.errors import UserError

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"


def make_key(*parts: str) -> str:
    """Key of a cache entry: a hash of everything that its content depends on."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def cached_folder(folder: Path, build: Callable[[Path], None], *, what: str) -> Path:
    """The folder, built first if it is not there or damaged.

    It is built beside its place and renamed, so a process that is killed leaves nothing that looks complete. A second
    process that wants the same folder waits for the first and uses its work.

    Args:
        folder: where it belongs; the last part of the path is its key.
        build: writes the files into the (empty) folder that it is given.
        what: what is in it, for messages.

    Raises:
        UserError: when the cache cannot be written.
    """
    if folder.is_dir() and damage(folder) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, what):
            _build(folder, build, what)
    except OSError as error:
        raise UserError(f"data.cache_dir: {error.filename or folder}: {error.strerror or error}") from error
    return folder


def _build(folder: Path, build: Callable[[Path], None], what: str) -> None:
    if folder.is_dir():
        problem = damage(folder)
        if problem is None:
            return
        logger.warning("%s is damaged (%s): %s is prepared again", folder, problem, what)
        shutil.rmtree(folder)
    partial = folder.with_name(f"{folder.name}.partial")
    # We hold the lock, so whoever made this one is dead.
    shutil.rmtree(partial, ignore_errors=True)
    _remove_leftovers(folder.parent)
    partial.mkdir()
    try:
        build(partial)
        names = sorted(path.name for path in partial.iterdir())
        manifest = {"files": dict(zip(names, _checksums(partial, names), strict=True))}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _locked(folder: Path, what: str) -> Iterator[None]:
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("waiting for another process that prepares %s", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def damage(folder: Path) -> str | None:
    """What is wrong with a cached folder, by its manifest; None when all its files are as they were written."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, entry in files.items():
            size = (folder / name).stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size} bytes, not {entry['bytes']}"
        for name, entry in zip(files, _checksums(folder, list(files)), strict=True):
            if entry != files[name]:
                return f"the checksum of {name} does not fit"
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None


def _checksums(folder: Path, names: list[str]) -> list[dict[str, int | str]]:
    def checksum(name: str) -> dict[str, int | str]:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
            return {"bytes": file.tell(), "blake2b": digest}

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(checksum, names))


def _remove_leftovers(root: Path) -> None:
    """Remove what killed processes left half built: the partial folders whose lock is free."""
    for partial in root.glob("*.partial"):
        try:
            with FileLock(partial.with_suffix(".lock")).acquire(timeout=0):
                shutil.rmtree(partial, ignore_errors=True)
        except Timeout:
            continue
