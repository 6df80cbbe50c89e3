"""What a user reads when the input is wrong: exit code 2, one line a problem, no traceback."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertlab.cli.app import print_error, run_command
from bertlab.errors import Interrupted, RunFailure, UserError

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ("demo", "mlm_base", "mlm_large", "mlm_medium", "mlm_mini", "mlm_small", "mlm_tiny")

# Arguments, and what the message must hold.
CASES: dict[str, tuple[list[str], list[str]]] = {
    "unknown experiment": (["experiment=mlm_huge"], ["mlm_huge", *EXPERIMENTS]),
    "unknown option": (["experiment=mlm_tiny", "model=gpt"], ["gpt", "bert", "modern"]),
    "unknown tokenizer": (["tokenizer=sentencepiece"], ["sentencepiece", "wordpiece_8k", "unigram", "pretrained"]),
    "unknown group": (["flavour=sweet"], ["flavour"]),
    "unknown key": (
        ["experiment=mlm_tiny", "model.heads=4"],
        ["model.heads", "num_attention_heads", "hidden_size"],
    ),
    "unknown key of an option": (["tokenizer=pretrained", "tokenizer.vocab_size=5"], ["vocab_size", "path"]),
    "unknown key at the root": (["sed=3"], ["sed", "seed", "run_dir"]),
    "key that is added": (["experiment=mlm_tiny", "+model.heads=4"], ["model.heads", "num_attention_heads"]),
    "keys that are forced": (
        ["experiment=mlm_tiny", "++trainr.max_steps=5", "++data.packin=none"],
        ["trainr: there is no 'trainr' in the configuration; it has checkpoint", "data.packin: there is no 'packin'"],
    ),
    "key that is taken out": (["experiment=mlm_tiny", "~seed"], ["seed was taken out"]),
    "number for a group": (["experiment=mlm_tiny", "model=3"], ["model=3: this must be a string", "bert, modern"]),
    "null for a group": (["experiment=null"], ["experiment=null: this must be a string", *EXPERIMENTS]),
    "unknown experiment in a list": (["experiment=[mlm_tiny,mlm_huge]"], ["mlm_huge", *EXPERIMENTS]),
    "group that is taken out": (["experiment=demo", "~model"], ["model was taken out"]),
    "group that is taken out, with a base class": (["experiment=demo", "~schedule"], ["schedule was taken out"]),
    "text for a list": (
        ["experiment=mlm_tiny", "data=text", "data.train_files=a.txt"],
        ["data.train_files takes a list", "data.train_files='[a.txt]'"],
    ),
    "interpolation that leads nowhere": (["experiment=mlm_tiny", "data.cache_dir=${home}"], ["data.cache_dir", "home"]),
    "home of nobody": (
        ["experiment=mlm_tiny", "data.cache_dir='~nobody-at-all/x'"],
        ["data.cache_dir=~nobody-at-all/x", "home"],
    ),
    "tilde without quotes": (["data=text", "data.train_files=[~/a.txt]"], ["cannot be read", "=, ~ or letters"]),
    "cache that cannot be made": (["experiment=mlm_tiny", "data.cache_dir=/proc/x"], ["data.cache_dir: /proc/x"]),
    "padding id": (["experiment=mlm_tiny", "model.pad_token_id=7"], ["model.pad_token_id=7 comes from the tokenizer"]),
    "vocabulary that is too small": (
        ["experiment=mlm_tiny", "model.vocab_size=20"],
        ["model.vocab_size=20 is smaller than the tokenizer's 8192"],
    ),
    "wrong type": (["experiment=mlm_tiny", "model.hidden_size=big"], ["model.hidden_size", "big"]),
    "null where there is a number": (["experiment=mlm_tiny", "optimizer.lr=null"], ["optimizer.lr"]),
    "grammar": (
        ["experiment=mlm_tiny", "data=text", "data.train_files=[my text (1).txt]"],
        ["data.train_files=[my text (1).txt]", """'["my text.txt"]'"""],
    ),
    "grammar, letters beyond ASCII": (["data=text", "data.train_files=[größe.txt]"], ["größe", "quote"]),
    "several problems at once": (
        [
            "experiment=mlm_tiny",
            "model.num_attention_heads=7",
            "model.hidden_dropout_prob=1.5",
            "data.micro_batch_size=3",
            "masking.probability=0",
            "optimizer.lr=-1",
            "schedule.warmup=2",
            "trainer.precision=8-bit",
            "checkpoint.every_n_steps=0",
        ],
        [
            "model.num_attention_heads=7 does not divide model.hidden_size=128",
            "model.hidden_dropout_prob=1.5",
            "data.micro_batch_size=3 does not divide data.global_batch_size=16",
            "masking.probability=0",
            "optimizer.lr=-1",
            "schedule.warmup=2",
            "trainer.precision=8-bit",
            "checkpoint.every_n_steps=0",
        ],
    ),
    "attention dropout of 1": (
        ["experiment=demo", "model.attention_probs_dropout_prob=1"],
        ["attention_probs_dropout_prob=1"],
    ),
    "fractions above 1": (["masking.mask_fraction=0.8", "masking.random_fraction=0.3"], ["add up to more than 1"]),
    "longer than the positions": (
        ["experiment=mlm_tiny", "data.sequence_length=1024"],
        ["data.sequence_length=1024 is longer than model.max_position_embeddings=512"],
    ),
    "batch": (["experiment=demo", "data.global_batch_size=10", "data.micro_batch_size=4"], ["does not divide"]),
    "no budget": (["model=bert"], ["trainer.max_steps=10000", "trainer.max_time=00:00:06:00"]),
    "duration as an integer": (["experiment=mlm_tiny", "trainer.max_time=360"], ["max_time=360", "DD:HH:MM:SS"]),
    "duration without days": (["experiment=mlm_tiny", "trainer.max_time=00:06:00"], ["DD:HH:MM:SS"]),
    "no time at all": (["experiment=mlm_tiny", "trainer.max_time=00:00:00:00"], ["longer than 0"]),
    "steps": (["experiment=mlm_tiny", "trainer.max_steps=0"], ["trainer.max_steps=0"]),
    "ids of the tokenizer": (
        ["experiment=mlm_tiny", "masking.mask_token_id=4", "masking.vocab_size=100"],
        ["masking.mask_token_id", "masking.vocab_size", "comes from the tokenizer"],
    ),
    "text without files": (["experiment=mlm_tiny", "data=text"], ["data.train_files is empty"]),
    "glob": (
        ["experiment=mlm_tiny", "data=text", "data.train_files=[nowhere/**/*.txt]"],
        ["data.train_files", "finds no files", "nowhere/**/*.txt"],
    ),
    "no such file": (["experiment=mlm_tiny", "data=text", "data.train_files=[nowhere.txt]"], ["no such file"]),
    "tokenizer without path": (["experiment=mlm_tiny", "tokenizer=pretrained"], ["tokenizer.path is empty"]),
    "tokenizer that is not there": (
        ["experiment=mlm_tiny", "tokenizer=pretrained", "tokenizer.path=nowhere/vocab.txt"],
        ["tokenizer.path=nowhere/vocab.txt"],
    ),
    "dataset without name": (["experiment=mlm_tiny", "data=hf"], ["data.name is empty"]),
    "books": (["experiment=mlm_tiny", "data.val_books=[Rut]"], ["data.val_books", "Rut", "Ruth"]),
    "options that are not built": (["experiment=mlm_tiny", "model.norm=none"], ["model.norm=none", "post, pre"]),
    "backends that are not built": (["model.attention_backend=varlen"], ["varlen", "auto, reference, sdpa"]),
    "odd heads with rope": (
        ["experiment=demo", "model.hidden_size=30", "model.num_attention_heads=2"],
        ["model.position=rope needs an even head width"],
    ),
}


def check_refused(outcome: Any, fragments: list[str]) -> None:
    assert outcome.code == 2, outcome.err
    lines = outcome.err.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines), outcome.err
    assert "Traceback" not in outcome.err + outcome.out
    for fragment in fragments:
        assert fragment in outcome.err, f"{fragment!r} is not in {outcome.err!r}"


@pytest.mark.parametrize(("arguments", "fragments"), list(CASES.values()), ids=list(CASES))
def test_refused(arguments: list[str], fragments: list[str], command: Callable[..., Any], tmp_path: Path) -> None:
    outcome = command("train", *arguments, "logger=none", f'run_dir="{tmp_path / "run"}"')
    check_refused(outcome, fragments)
    assert not (tmp_path / "run").exists()


def test_one_line_for_each_problem(command: Callable[..., Any]) -> None:
    arguments, problems = CASES["several problems at once"]
    lines = command("train", *arguments).err.splitlines()
    assert len(lines) == len(problems)
    assert len(command("train", "experiment=mlm_huge").err.splitlines()) == 1
    assert len(command("train", "model.heads=4").err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="has a GPU")
@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["trainer.accelerator=gpu"], ["trainer.accelerator=gpu", "no GPU"]),
        (["trainer.precision=16-mixed"], ["trainer.precision=16-mixed needs a GPU", "32-true"]),
        (["trainer.precision=16-true"], ["trainer.precision=16-true needs a GPU"]),
        (["trainer.accelerator=cpu", "trainer.precision=16-mixed"], ["trainer.precision=16-mixed needs a GPU"]),
    ],
)
def test_what_needs_a_gpu(
    arguments: list[str], fragments: list[str], command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path
) -> None:
    run_dir = f'run_dir="{tmp_path / "run"}"'
    arguments = [*(one for one in tiny_overrides if not one.startswith("trainer.accelerator")), *arguments]
    check_refused(command("train", "experiment=mlm_tiny", *arguments, run_dir), fragments)


def test_run_dir_that_is_taken(command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    outcome = command("train", "experiment=mlm_tiny", *tiny_overrides, f'run_dir="{tmp_path}"')
    check_refused(outcome, [f"run_dir={tmp_path} exists and is not empty"])
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_vocabulary_smaller_than_the_tokenizers(
    command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path
) -> None:
    arguments = [*tiny_overrides, "model.vocab_size=20", f'run_dir="{tmp_path / "run"}"']
    check_refused(
        command("train", "experiment=mlm_tiny", *arguments), ["model.vocab_size=20 is smaller than the tokenizer's"]
    )


def test_undecodable_file(command: Callable[..., Any], tiny_overrides: list[str], tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"plain text\n" + "café".encode("latin-1") + b" and more\n")
    arguments = [*tiny_overrides, f'data.train_files=["{tmp_path / "latin.txt"}"]', f'run_dir="{tmp_path / "run"}"']
    check_refused(command("train", "experiment=mlm_tiny", *arguments), ["latin.txt: byte 14"])


@pytest.mark.parametrize("experiment", ["mlm_base", "mlm_small"])
def test_without_the_hub_text_is_the_way(experiment: str, command: Callable[..., Any], tmp_path: Path) -> None:
    outcome = command("train", f"experiment={experiment}", "logger=none", f'run_dir="{tmp_path / "run"}"')
    check_refused(outcome, ["wikimedia/wikipedia", "data=text", "data.train_files"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["my text.txt", "a=b.txt", "[draft] (2).txt", "größe é.txt", "it, {x}.txt"])
def test_file_names_pass_when_quoted_as_the_hint_says(
    name: str, command: Callable[..., Any], tiny_overrides: list[str], corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes((corpus / "train.txt").read_bytes())
    arguments = [*tiny_overrides, f'data.train_files=["{tmp_path / name}"]', "data.val_files=[]"]
    outcome = command("prepare_data", *arguments)
    assert outcome.code == 0, outcome.err
    assert "training: 1 documents" in outcome.out


def test_the_hint_holds_in_a_shell(tiny_overrides: list[str], corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "my [1] é=.txt").write_bytes((corpus / "train.txt").read_bytes())
    quoted = shlex.join([sys.executable, str(ROOT / "scripts" / "prepare_data.py"), *tiny_overrides])
    line = f"""{quoted} data.val_files=[] data.train_files='["my [1] é=.txt"]'"""
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "training: " in done.stdout


def test_a_real_process_exits_with_2() -> None:
    for arguments in (["experiment=mlm_huge"], ["experiment=mlm_tiny", "data=text", "data.train_files=[a b(].txt]"]):
        done = subprocess.run(
            [sys.executable, "train.py", *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("error: ")


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (UserError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (Interrupted(15), 143, "error: interrupted by SIGTERM\n"),
        (Interrupted(2), 130, "error: interrupted by SIGINT\n"),
        (RunFailure("it diverged"), 1, "error: it diverged\n"),
    ],
)
def test_exit_codes(error: BaseException, code: int, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(raising(error)) == code
    assert capsys.readouterr().err == printed


def test_a_fault_of_ours_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(raising(ZeroDivisionError("oops"))) == 1
    assert "Traceback" in capsys.readouterr().err
    assert run_command(lambda: None) == 0


def test_blank_lines_have_no_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("a\n\nb")
    assert capsys.readouterr().err == "error: a\n\nerror: b\n"
