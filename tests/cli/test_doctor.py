"""`combemb doctor`, `--version` and completion, in processes of their own."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

import combemb

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def in_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "combemb", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_versions_devices_threads_and_extras_are_shown(tmp_path: Path):
    run = in_process("doctor", OMP_NUM_THREADS="1", COMBEMB_CACHE=str(tmp_path / "cache"))
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith(f"combemb {combemb.__version__}, Python {sys.version.split()[0]}, ")
    assert f"  torch {version('torch')}" in lines
    assert f"  pillow {version('pillow')}" in lines
    assert f"extra hf: transformers {version('transformers')}" in lines
    assert any(line.startswith("devices: ") and "cpu" in line for line in lines)
    assert any(line.startswith("threads: 1 of torch, 1 of FAISS, for ") for line in lines)
    assert f"cache: {tmp_path / 'cache'}" in lines
    extras = set(distribution("combemb").metadata.get_all("Provides-Extra")) - {"dev"}
    assert {line.split(":")[0] for line in lines if line.startswith("extra ")} == {f"extra {name}" for name in extras}
    assert not (tmp_path / "cache").exists()


def doctor_with(requirements: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The doctor of an installation that declares these packages."""
    info = folder / "combemb-0.1.0.dist-info"
    info.mkdir()
    text = "".join(f"Requires-Dist: {line}\n" for line in requirements)
    (info / "METADATA").write_text(f"Metadata-Version: 2.3\nName: combemb\nVersion: 0.1.0\n{text}")
    paths = [str(folder), str(Path(combemb.__file__).parents[1])]
    return in_process("doctor", PYTHONPATH=os.pathsep.join(paths))


def test_what_is_missing_comes_with_the_line_that_installs_it(tmp_path: Path):
    extra = ["no-such-extra>=1; extra == 'more'", "numpy>=1; extra == 'more'"]
    run = doctor_with(["torch>=2.4", "no-such-package>=1", *extra], tmp_path)
    assert run.returncode == 1
    assert "  no-such-package is missing; pip install no-such-package" in run.stdout.splitlines()
    assert 'extra more: not installed (no-such-extra); pip install "combemb[more]"' in run.stdout.splitlines()


def test_the_extra_for_fast_extraction_is_shown(tmp_path: Path):
    extra = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["fast"]
    run = doctor_with(["torch>=2.4", *(f"{line}; extra == 'fast'" for line in extra)], tmp_path)
    assert run.returncode == 0, run.stderr
    assert f"extra fast: openvino {version('openvino')}" in run.stdout.splitlines()


def test_a_torch_that_cannot_be_imported_is_told_without_a_traceback(tmp_path: Path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: wrong build')")
    run = doctor_with(["numpy"], tmp_path)
    assert run.returncode == 1
    assert "cannot be imported: OSError: libtorch.so: wrong build; install them again" in run.stdout
    assert "Traceback" not in run.stderr


def test_the_version_is_printed():
    run = in_process("--version")
    assert (run.returncode, run.stdout) == (0, f"combemb {combemb.__version__}\n")


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"), [("ind", "index"), ("index --rem", "--remove"), ("search --ht", "--html")]
)
def test_bash_completes_verbs_and_options(tmp_path: Path, words: str, expected: str):
    command = tmp_path / "combemb"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m combemb "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(_COMBEMB_COMPLETE=source_bash combemb)"; COMP_WORDS=(combemb $WORDS);'
        'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _combemb_completion combemb; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "WORDS": words}
    run = subprocess.run(
        ["/bin/bash", "-c", script], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.stdout.split() == [expected], run.stderr
