"""The file of an index: the same results in another process, and no damage that goes unnoticed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb import CodeIndex
from combemb.search import index_file
from combemb.search.codebook import ProductCodebook, binary_codebook
from tests.search.problems import make, problems

SEARCH = """
import json, sys
import numpy as np
from combemb import CodeIndex
hits = CodeIndex.load(sys.argv[1]).search(np.load(sys.argv[2]), 20)
json.dump([hits.ids.tolist(), hits.scores.tolist()], sys.stdout)
"""


def filled(problem, ids=None):
    index = CodeIndex(problem.codebook)
    index.add(problem.codes, ids)
    return index


@given(problem=problems(), kind=st.sampled_from(["none", "ints", "strings"]))
@settings(max_examples=60, deadline=None)
def test_a_loaded_index_finds_the_same(tmp_path_factory, problem, kind):
    path = tmp_path_factory.mktemp("index") / "index.safetensors"
    N = len(problem.codes)
    ids = {"none": None, "ints": [7 * i - 50 for i in range(N)], "strings": [f"bild-{i}-ä" for i in range(N)]}[kind]
    index = filled(problem, ids)
    index.save(path)
    loaded = CodeIndex.load(path, problem.codebook)
    assert loaded.codebook == problem.codebook
    assert np.array_equal(loaded.ids, index.ids)
    assert np.array_equal(loaded.codes(), problem.codes)
    assert loaded.search(problem.queries, 9).to_list() == index.search(problem.queries, 9).to_list()
    loaded.add(problem.codes[:1], None if kind == "none" else [10**6] if kind == "ints" else ["neu"])
    assert len(loaded) == N + 1
    loaded.save(path)  # over the file that it is mapped from
    assert len(CodeIndex.load(path)) == N + 1


@pytest.mark.parametrize("kind", ["ints", "strings"])
def test_another_process_finds_the_same(tmp_path, kind):
    problem = make(0, [4] * 12, 2, 3_000, distinct=0.3)
    index = filled(problem, None if kind == "ints" else [f"{i}.jpg" for i in range(3_000)])
    index.save(tmp_path / "index.safetensors")
    np.save(tmp_path / "queries.npy", problem.queries)
    command = [sys.executable, "-c", SEARCH, str(tmp_path / "index.safetensors"), str(tmp_path / "queries.npy")]
    ids, scores = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    hits = index.search(problem.queries, 20)
    assert ids == hits.ids.tolist()
    assert scores == hits.scores.tolist()


def test_an_empty_index_can_be_kept(tmp_path):
    CodeIndex(binary_codebook(12)).save(tmp_path / "index.safetensors")
    loaded = CodeIndex.load(tmp_path / "index.safetensors")
    assert len(loaded) == 0
    loaded.add(np.zeros((2, 12), np.uint8), ["a", "b"])
    assert loaded.search(np.ones((1, 12)), 1).ids.tolist() == [["a"]]


def test_every_changed_byte_is_noticed(tmp_path):
    path, problem = tmp_path / "index.safetensors", make(0, [4] * 6, 1, 20, distinct=0.5)
    filled(problem, [f"{i}" for i in range(20)]).save(path)
    whole, expected = path.read_bytes(), CodeIndex.load(path).search(problem.queries, 20).to_list()
    n_harmless = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        try:
            found = CodeIndex.load(path, problem.codebook).search(problem.queries, 20).to_list()
        except ValueError:
            continue
        assert found == expected  # in a part of the head that is not read
        n_harmless += 1
    assert n_harmless < 0.1 * len(whole)


def test_a_file_cut_short_is_noticed_wherever_it_ends(tmp_path):
    path, problem = tmp_path / "index.safetensors", make(0, [4] * 6, 1, 20)
    filled(problem).save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged or no index, make it again"):
            CodeIndex.load(path)


def test_what_is_no_index_of_this_model_is_refused(tmp_path):
    path, problem = tmp_path / "index.safetensors", make(0, [4] * 6, 2, 20)
    with pytest.raises(ValueError, match="there is no such file"):
        CodeIndex.load(path)
    filled(problem).save(path)
    for other in (
        make(1, [4] * 6, 2, 20).codebook,
        ProductCodebook(problem.codebook.words, "inner"),
        binary_codebook(12),
    ):
        with pytest.raises(ValueError, match=r"was made with another codebook: .*; index again"):
            CodeIndex.load(path, other)
    with pytest.raises(ValueError, match="damaged or no index"):
        CodeIndex.load(tmp_path)


def test_a_file_of_a_later_format_says_so(tmp_path, monkeypatch):
    path = tmp_path / "index.safetensors"
    monkeypatch.setattr(index_file, "PRODUCT_FORMAT", 9)
    filled(make(0, [4] * 6, 2, 20)).save(path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="it has format 9, this combemb reads 1 and 2"):
        CodeIndex.load(path)


def test_a_process_killed_while_saving_leaves_the_old_file(tmp_path):
    path, problem = tmp_path / "index.safetensors", make(0, [4] * 6, 2, 500)
    filled(problem).save(path)
    before = path.read_bytes()
    command = [sys.executable, "-m", "tests.search.test_index_file", str(path)]
    child = subprocess.run(command, check=False, cwd=Path(__file__).parents[2])
    assert child.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert len(CodeIndex.load(path)) == 500


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path, problem = tmp_path / "index.safetensors", make(0, [4] * 6, 2, 50)
    index = filled(problem)
    index.save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_file, "save_file", full)
    with pytest.raises(OSError, match=r"index.safetensors: the disk is full, the file takes 0\.00 MB; free some space"):
        index.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["index.safetensors"]


if __name__ == "__main__":  # what the killed process does
    index = filled(make(1, [4] * 6, 2, 90))
    save = index_file.save_file

    def die(*given):
        save(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    index_file.save_file = die
    index.save(sys.argv[1])
