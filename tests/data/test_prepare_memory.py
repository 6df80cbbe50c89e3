import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from bertlab.data.config import KjvConfig, WordPieceConfig
from bertlab.data.corpus import corpora
from bertlab.data.tokenizer_training import train_on_corpus

PROGRAM = """
import sys
from bertlab.data.config import PretrainedTokenizerConfig, TextConfig, WordPieceConfig
from bertlab.data.prepare import prepare

if __name__ == "__main__":
    file, vocabulary, cache = sys.argv[1:]
    tokenizer = PretrainedTokenizerConfig(path=vocabulary) if vocabulary else WordPieceConfig(vocab_size=8192)
    config = TextConfig(train_files=[file], document="block", cache_dir=cache, prepare_workers=2)
    print(prepare(config, tokenizer).train.num_documents)
"""


def write_text(path, megabytes):
    """Random verses: one document of half the size, then documents of a line each."""
    verses = [verse for piece in corpora(KjvConfig())[0].documents() for verse in piece.text.split("\n")]
    rng = np.random.default_rng(0)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1_000_000:
            end = "\n" if written < megabytes * 500_000 else "\n\n"
            written += file.write("".join(verses[number] + end for number in rng.integers(0, len(verses), 10_000)))


def peak_memory(arguments, folder):
    """Largest resident memory of a process and its children together, in MB; and what it printed."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, program, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env=environment
    )
    peak = 0
    while process.poll() is None:
        try:
            parent = psutil.Process(process.pid)
            family = [parent, *parent.children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in family))
        except psutil.NoSuchProcess:
            pass  # one of them ended in between
        time.sleep(0.05)
    assert process.returncode == 0
    return peak / 1e6, process.stdout.read()


@pytest.mark.slow
@pytest.mark.parametrize("trained", [False, True])
def test_peak_memory_does_not_grow_with_the_corpus(tmp_path, trained):
    vocabulary = ""
    if not trained:
        vocabulary = tmp_path / "tokenizer.json"
        train_on_corpus(WordPieceConfig(vocab_size=8192), corpora(KjvConfig())[0]).backend.save(str(vocabulary))
    peaks = []
    for megabytes in (200, 1000):
        write_text(tmp_path / "corpus.txt", megabytes)
        peak, output = peak_memory([tmp_path / "corpus.txt", vocabulary, tmp_path / f"cache-{megabytes}"], tmp_path)
        print(f"{megabytes} MB of text, {output.strip()} documents: peak {peak:.0f} MB")
        assert int(output) > megabytes * 1000
        peaks.append(peak)
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 4000
