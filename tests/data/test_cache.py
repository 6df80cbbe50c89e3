import json
import logging
import shutil
import threading
import time

import pytest
from filelock import FileLock

from bertlab.data.cache import MANIFEST, cached_folder, damage, make_key


def builder(calls, content="content"):
    def build(folder):
        calls.append(folder)
        (folder / "data.bin").write_text(content)

    return build


def test_built_once(tmp_path):
    calls = []
    folder = tmp_path / "cache" / "key"
    assert cached_folder(folder, builder(calls), what="it") == folder
    assert cached_folder(folder, builder(calls), what="it") == folder
    assert len(calls) == 1
    assert (folder / "data.bin").read_text() == "content"
    assert damage(folder) is None


def truncate(folder):
    (folder / "data.bin").write_text("cont")


def change_a_byte(folder):
    (folder / "data.bin").write_text("contemt")


def remove_a_file(folder):
    (folder / "data.bin").unlink()


def garble_the_manifest(folder):
    (folder / MANIFEST).write_text("{")


def empty_the_manifest(folder):
    (folder / MANIFEST).write_text(json.dumps({}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (truncate, "data.bin has 4 bytes, not 7"),
        (change_a_byte, "the checksum of data.bin does not fit"),
        (remove_a_file, "data.bin: No such file"),
        (garble_the_manifest, "manifest.json cannot be read"),
        (empty_the_manifest, "manifest.json cannot be read"),
    ],
)
def test_damaged_entry_is_reported_once_and_built_again(tmp_path, caplog, harm, message):
    calls = []
    folder = cached_folder(tmp_path / "key", builder(calls), what="the corpus")
    harm(folder)
    with caplog.at_level(logging.WARNING):
        cached_folder(folder, builder(calls), what="the corpus")
    assert len(calls) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert message in caplog.text
    assert "the corpus is prepared again" in caplog.text
    assert damage(folder) is None


def test_a_failure_leaves_nothing(tmp_path):
    def build(folder):
        (folder / "data.bin").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder(tmp_path / "key", build, what="it")
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]


def test_leftovers_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path):
    for key in ("key", "dead", "alive"):
        (tmp_path / f"{key}.partial").mkdir(parents=True)
        (tmp_path / f"{key}.partial" / "data.bin").write_text("half")
    with FileLock(tmp_path / "alive.lock"):
        cached_folder(tmp_path / "key", builder([]), what="it")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["alive.partial", "key"]


def test_the_second_waits_for_the_first(tmp_path, caplog):
    calls = []

    def slow(folder):
        time.sleep(0.5)
        builder(calls)(folder)

    threads = [
        threading.Thread(target=cached_folder, args=(tmp_path / "key", slow), kwargs={"what": "the corpus"})
        for _ in range(2)
    ]
    with caplog.at_level(logging.INFO):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(calls) == 1
    assert "waiting for another process that prepares the corpus" in caplog.text


def test_a_shared_cache_may_be_read_only(tmp_path):
    folder = cached_folder(tmp_path / "key", builder([]), what="it")
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "key.lock").unlink()
    cached_folder(folder, builder([]), what="it")
    assert sorted(tmp_path.rglob("*")) == [path for path in before if path.name != "key.lock"]


def test_key_depends_on_every_part():
    keys = {make_key("a", "b"), make_key("ab"), make_key("a", "c"), make_key("b", "a"), make_key("a", "b", "")}
    assert len(keys) == 5
    assert make_key("a", "b") == make_key("a", "b")


def test_cache_can_be_deleted(tmp_path):
    calls = []
    cached_folder(tmp_path / "cache" / "key", builder(calls), what="it")
    shutil.rmtree(tmp_path / "cache")
    cached_folder(tmp_path / "cache" / "key", builder(calls), what="it")
    assert len(calls) == 2
