"""Two processes of torchrun fit on a folder of images: both extract, and the run is that of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.commands import done
from tests.pictures import IDS, write_folder

COPIES, BATCHES = 2, (64, 64, 16)  # of the pictures; of images
BROKEN = ("ant/000-1.png", "unlabelled/040-0.png")  # in the first and in the second batch
OPTIONS = ["--bits=12", "--quiet", *(f"--set={x}" for x in ("epochs=3", "batch_size=64", "image_size=32", "n_views=2"))]
OPTIONS += ["--set=check=False"]  # several processes make no check
LIMIT = 120  # seconds until processes that hang are given up

SCRIPT = """
import os, sys
from pathlib import Path

from torch.nn.modules.module import register_module_forward_pre_hook

from combemb.backbones.base import Backbone
from combemb.cli import app

seen = []


def see(module, given):
    if isinstance(module, Backbone):
        seen.append(len(given[0]))


register_module_forward_pre_hook(see)
try:
    app(sys.argv[2:])
except SystemExit as end:
    Path(sys.argv[1], f"seen-{os.environ['RANK']}").write_text(repr(seen))
    sys.stderr.flush()
    os._exit(int(end.code or 0))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(COPIES):
        write_folder(folder, [name.replace(".png", f"-{i}.png") for name in IDS], broken=BROKEN)
    return folder


def launch(folder: Path, *arguments: object) -> None:
    """Run the script in two processes of torchrun; none of them is left when this returns."""
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "COMBEMB_CACHE": str(folder / "cache")}
    env.pop("OMP_NUM_THREADS", None)  # torchrun sets it
    command += map(str, (folder / "script.py", folder, *arguments))
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as child:
        try:
            _, errors = child.communicate(timeout=LIMIT)
        finally:
            child.terminate()  # torchrun then ends its processes; nothing happens if it has ended
    assert child.returncode == 0, errors[-3000:]


@pytest.fixture(scope="module")
def two(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    launch(folder, "fit", photos, "--out", folder / "run", *OPTIONS)
    return folder


@pytest.fixture(scope="module")
def one(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMBEMB_CACHE", str(folder / "cache"))
        done("fit", photos, "--out", folder / "run", *OPTIONS)
    return folder


def test_both_processes_extract(two: Path):
    seen = [json.loads((two / f"seen-{rank}").read_text()) for rank in range(2)]
    assert [batches[0] for batches in seen] == [1, 1]  # a trial shows how many features there are
    assert sum(BATCHES) == COPIES * len(IDS)
    assert [batches[1:] for batches in seen] == [[63, 63, 16, 16], [63, 63]]


def test_the_cache_has_the_bytes_that_one_process_writes(one: Path, two: Path):
    contents = [
        {path.suffix: path.read_bytes() for path in folder.joinpath("cache").rglob("*.*") if path.name != ".lock"}
        for folder in (one, two)
    ]
    assert contents[0].keys() == {".json", ".keys", ".rows"}
    assert contents[0] == contents[1]
    assert len(list((two / "cache").rglob("*.rows"))) == 1


def test_the_run_is_that_of_one_process(one: Path, two: Path):
    for name in ("run.json", "broken.csv"):
        assert (two / "run" / name).read_bytes() == (one / "run" / name).read_bytes(), name
    assert all(name in (two / "run" / "broken.csv").read_text() for name in BROKEN)
    states = [load_file(folder / "run" / "weights.safetensors") for folder in (one, two)]
    assert states[0].keys() == states[1].keys()
    for name, expected in states[0].items():
        assert_close(states[1][name], expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
