"""Whatever is wrong with the input of a command, a person reads one message and no traceback."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import call
from tests.pictures import write_folder

OUT = "<out>"  # a file or folder that does not exist yet
QUICK = ["--method", "itq", "--bits", "12"]


def _write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture(scope="module")
def places(item_run, items: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What a word of a command stands for: a path below a folder of things that are wrong, or the word itself."""
    root = tmp_path_factory.mktemp("bad")
    rng = np.random.default_rng(0)
    junk = rng.bytes(3_000)
    (root / "empty").mkdir()
    (root / "folder.npy").mkdir()
    for name in (
        "junk.npy",
        "junk.npz",
        "junk.parquet",
        "junk.csv",
        "junk.jpg",
        "junk.txt",
        "junk.safetensors",
        "junk",
    ):
        _write(root / name, junk)
    for name in ("zero.npy", "zero.csv", "zero.jpg", "zero.parquet", "zero.txt"):
        _write(root / name, b"")
    _write(root / "words.csv", "first,second\n1,2\n")
    _write(root / "ragged.csv", "path,label\na.jpg\nb.jpg,cat,dog\n")
    _write(root / "gone.csv", "path,label\nno/such.jpg,cat\nnor/this.jpg,dog\n")
    _write(root / "latin.csv", "id,label\nitem-1,caf\xe9\n".encode("latin-1"))
    _write(root / "other-labels.csv", "id,label\nphoto-1,cat\n")
    _write(root / "two-labels.csv", "id,label\nitem-1,cat\nitem-1,dog\n")
    _write(root / "few-labels.txt", "cat\ndog\n")
    _write(root / "words.txt", "some words\n")
    np.save(root / "one-dimension.npy", np.zeros(5))
    np.save(root / "narrow.npy", np.zeros((5, 3)))
    np.save(root / "nan.npy", np.full((50, 12), np.nan))
    np.save(root / "text.npy", np.array([["a", "b"]]))
    np.save(root / "objects.npy", np.array([{}, None], dtype=object))
    np.save(root / "grey.npy", np.zeros((5, 8, 8), np.uint8))
    np.savez(root / "without-x.npz", y=np.zeros(3))
    np.savez(root / "twice.npz", x=rng.normal(size=(40, 8)), labels=["a", "b"] * 20, ids=["same"] * 40)
    np.savez(root / "unlabelled.npz", x=rng.normal(size=(40, 8)))
    pq.write_table(pa.table({"embedding": [[1.0], [1.0, 2.0]]}), root / "ragged.parquet")
    _write(root / "junk-photos/cat/1.jpg", junk)
    _write(root / "junk-photos/dog/2.jpg", junk)
    _write(root / "not-json/run.json", "{")
    _write(root / "empty-json/run.json", "{}")
    _write(root / "list-json/run.json", "[1, 2]")
    run, _ = item_run
    for name in ("cut", "no-weights", "bad-table", "bad-log", "bad-discovery"):
        shutil.copytree(run, root / name)
    weights = root / "cut/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    (root / "no-weights/weights.safetensors").unlink()
    _write(root / "bad-table/discovery.parquet", junk)
    _write(root / "bad-log/classes.jsonl", junk + b"\n")
    _write(root / "bad-discovery/discovery.safetensors", junk)
    good = {"<run>": run, "<items>": items, "<photos>": photos}

    def place(word: str) -> str:
        return str(good[word]) if word in good else str(root / word[1:]) if word.startswith("@") else word

    return place


RUNS = ["@missing", "@empty", "@junk.txt", "@not-json", "@empty-json", "@list-json", "@cut", "@no-weights"]
DATA = [
    *(
        "@missing",
        "@empty",
        "@folder.npy",
        "@junk.npy",
        "@junk.npz",
        "@junk.parquet",
        "@junk.csv",
        "@junk.jpg",
        "@junk",
    ),
    *("@junk.txt", "@zero.npy", "@zero.csv", "@zero.jpg", "@zero.parquet", "@words.csv", "@ragged.csv", "@gone.csv"),
    *("@one-dimension.npy", "@nan.npy", "@text.npy", "@objects.npy", "@grey.npy", "@without-x.npz", "@ragged.parquet"),
    *("@junk-photos", "@junk.safetensors", ""),
]
LABELS = [
    *("@missing.csv", "@empty", "@junk.npy", "@junk.csv", "@junk.parquet", "@junk.txt", "@words.csv", "@latin.csv"),
    *("@other-labels.csv", "@two-labels.csv", "@few-labels.txt", "@objects.npy", "@folder.npy", "@text.npy"),
]
SOME_DATA, SOME_LABELS = DATA[::4], LABELS[::4]  # where other verbs read the same things by the same function
OPTIONS = [
    *(["--method", name] for name in ("nope", "nope:Nope", "os:path", "os:nope", ":", "itq:", "combemb.cli:app")),
    *(["--set", text] for text in ("", "=", "bits", "bits=", "bits=many", "nope=1", "seed=-1", "device=nope")),
    *(["--bits", number] for number in ("0", "-5", "many")),
]
CLASSES = [
    *(["nope"], ["name"], ["name", "nope", "cat"], ["name", "novel-1", ""], ["merge", "novel-1"], ["split", "nope"]),
    *(["move", "nope", "item-1"], ["move", "novel-1", "nope"], ["reject", "novel-1", "nope"], ["undo", "undo"]),
    *(["labels"], ["labels", "--out", "@words.txt"], ["labels", "--out", "@missing/labels.csv"], ["undo"]),
    *(["split", "novel-1", "--into", "0"], ["split", "novel-1", "--into", "10000"], ["name", "ant", "bee", "cat"]),
]
VERBS_WITH_DATA = {"run", "fit", "embed", "encode", "index", "search", "discover", "classes", "predict", "export"}
COMMANDS: list[list[str]] = [
    *(["fit", data, "--out", OUT, *QUICK] for data in [*DATA, "@twice.npz"]),
    *(["run", data, "--out", OUT, *QUICK] for data in [*SOME_DATA, "@twice.npz"]),
    *(["run", "<items>", "--out", OUT, *QUICK, "--labels", labels] for labels in LABELS),
    *(["fit", "<items>", "--out", OUT, *options] for options in OPTIONS),
    *(
        [verb, "<items>", "--out", out, *QUICK]
        for verb in ("fit", "run")
        for out in ("@junk.txt", "@junk/x", "@junk-photos")
    ),
    *([verb, "<items>", "--out", out, *QUICK] for verb in ("fit", "run") for out in ("@not-json", "@list-json", "")),
    ["run", "<items>", "--out", "<run>", "--method", "itq", "--bits", "24"],
    ["run", "@unlabelled.npz", "--out", OUT],
    ["fit", "@unlabelled.npz", "--out", OUT],
    ["fit", "<items>", "--out", "<run>", "--overwrite", "--resume"],
    *(["embed", run, "<items>", "--out", f"{OUT}.npy"] for run in RUNS),
    *(["encode", "<run>", data, "--out", f"{OUT}.npy"] for data in [*SOME_DATA, "@narrow.npy"]),
    *(
        ["embed", "<run>", "<items>", "--out", out]
        for out in ("@words.txt", "@missing/z.npy", "@junk/z.npy", "@junk.npy")
    ),
    *(["index", run, "--overwrite"] for run in RUNS),
    *(["index", "<run>", "--embeddings", data, "--overwrite"] for data in [*SOME_DATA, "@narrow.npy", "@twice.npz"]),
    *(["index", "<run>", "--images", data, "--overwrite"] for data in [*SOME_DATA, "<photos>"]),
    *(["index", "<run>", "--labels", labels, "--overwrite"] for labels in SOME_LABELS),
    *(["index", "<run>", *options] for options in (["--add"], ["--remove", "nope"], ["--add", "--overwrite"])),
    *(["search", run, "<items>"] for run in [*RUNS, "<run>"]),  # it has no index
    *(["discover", run, "--no-page"] for run in RUNS),
    *(["discover", "<run>", "--embeddings", data, "--out", OUT] for data in [*SOME_DATA, "@narrow.npy"]),
    *(["discover", "<run>", "--labels", labels, "--no-page"] for labels in SOME_LABELS),
    *(["discover", "<run>", *options] for options in (["--count-by", "nope"], ["--n-novel", "-1"], ["--copy"])),
    *(["discover", "<run>", *options] for options in (["--to-folders", "@junk.txt"], ["--to-folders", "@junk-photos"])),
    *(["discover", "<run>", "--n-novel", number] for number in ("100000", "many")),
    *(["classes", run] for run in [*RUNS[:-2], "@bad-table", "@bad-log"]),
    *(["classes", "<run>", *arguments] for arguments in CLASSES),
    *(["predict", run, "<items>"] for run in [*RUNS, "@bad-discovery", "@bad-table", "@bad-log"]),
    *(["predict", "<run>", data] for data in [*SOME_DATA, "@narrow.npy", "<photos>"]),
    *(
        ["predict", "<run>", "<items>", *options]
        for options in (["--copy"], ["--out", "@words.txt"], ["--to-folders", OUT])
    ),
    *(["export", run, "--to", "csv", "--out", f"{OUT}.csv"] for run in [*RUNS, "<run>"]),
    *(["export", "<run>", "--to", to, "--out", out] for to, out in (("nope", f"{OUT}.csv"), ("csv", f"{OUT}.faiss"))),
    *(["cache", "nope"], ["cache", "prune", "--days", "-1"], ["cache", "prune", "--days", "soon"]),
    *(["settings", name] for name in ("nope", "nope:Nope", "os:path", "combemb.cli:app")),
    *(["demo", "--out", out] for out in ("@junk.txt", "@junk-photos", "@junk/x")),
    *(["doctor", "nope"], ["nope"], ["--nope"], ["fit"], ["run"], ["search", "<run>"]),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_one_message_and_no_traceback(words: list[str], places: Callable[[str], str], tmp_path: Path):
    result = call(*(places(word).replace(OUT, str(tmp_path / "out")) for word in words))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in {1, 2}
    assert "Traceback" not in result.output
    if result.exit_code == 1:
        errors = [line for line in result.stderr.splitlines() if not line.startswith(("note: ", "step 1 of "))]
        assert len(errors) == 1, result.stderr
        assert errors[0].startswith("error: ")
        assert not errors[0].startswith("error: unexpected")
        assert len(errors[0]) > len("error: ") + 20
    else:
        assert "Usage: " in result.stderr
    assert not (tmp_path / "out").exists()


VERBS = {words[0]: words for words in reversed(COMMANDS) if words[0] in VERBS_WITH_DATA}  # the first of each
VERBS |= {"cache": ["cache", "nope"], "settings": ["settings", "nope"], "demo": ["demo", "--out", "@junk.txt"]}


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_debug_lets_the_error_through(words: list[str], places: Callable[[str], str], tmp_path: Path):
    """Python prints it with a traceback; that of a whole process is looked at below."""
    result = call(*(places(word).replace(OUT, str(tmp_path / "out")) for word in words), "--debug")
    assert isinstance(result.exception, ValueError | OSError), result.output
    assert result.exit_code == 1


def in_process(*arguments: object, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "combemb", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=dict(os.environ), **options)


def test_the_traceback_of_a_whole_process(tmp_path: Path):
    with in_process("search", tmp_path, "query.jpg", "--debug") as process:
        told = process.communicate()[1]
    assert process.returncode == 1
    assert "Traceback (most recent call last)" in told
    assert told.splitlines()[-1].startswith(f"ValueError: {tmp_path} is not a readable run folder: ")


OWN_METHOD = """
from dataclasses import dataclass

from combemb.methods.itq import ITQ


@dataclass(kw_only=True, eq=False, repr=False)
class Own(ITQ):
    def _fit(self, data, run, progress):
        raise KeyError("a bug\\nof mine")
"""


def test_a_bug_is_one_line_too(items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_method_with_a_bug.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ("fit", items, "--out", tmp_path / "run", "--method", "own_method_with_a_bug:Own", "--bits", "12")
    result = call(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: unexpected KeyError: ")
    assert result.stderr.endswith("; the same command with --debug shows where it came from\n")
    assert result.stderr.count("\n") == 1
    assert isinstance(call(*arguments, "--overwrite", "--debug").exception, KeyError)


def test_ctrl_c_says_that_it_stopped(tmp_path: Path):
    """The data are a named pipe, which nobody writes to."""
    folder = write_folder(tmp_path / "photos")
    os.mkfifo(tmp_path / "labels.txt")
    arguments = ("run", folder, "--labels", tmp_path / "labels.txt", "--out", tmp_path / "run")
    with in_process(*arguments) as process, (tmp_path / "labels.txt").open("w"):  # opens when the process reads it
        process.send_signal(signal.SIGINT)
        told = process.communicate()[1]
    assert process.returncode == 130
    assert told == "stopped; the same command goes on from here\n"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=" ".join)
def test_a_reader_that_closes_the_pipe_gets_no_error(item_run, items: Path, options: list[str]):
    with in_process("predict", item_run[0], items, *options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert told == ""
    assert process.returncode == 1


def test_an_unknown_command_lists_the_commands():
    assert "choose one of run, pretrain, fit, embed, encode," in " ".join(call("nope").stderr.replace("│", "").split())
