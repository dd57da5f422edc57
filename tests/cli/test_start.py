"""How the command line and the package start: at once, and with the user's own modules in reach."""

import subprocess
import sys
from pathlib import Path

import pytest

import combemb
from tests.commands import done

HEAVY = ("torch", "numpy", "pyarrow", "sklearn", "scipy", "faiss", "matplotlib", "plotly", "openTSNE", "PIL", "kornia")
PRINT_HEAVY = f"print([name for name in {HEAVY} if name in sys.modules])"
VERBS = [
    "run",
    "pretrain",
    "fit",
    "embed",
    "encode",
    "index",
    "search",
    "discover",
    "export",
    "methods",
    "settings",
    "demo",
    "cache",
    "doctor",
]


def in_child(code: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """A process of its own, in which nothing has been imported yet."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("arguments", [[], ["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_imports_no_heavy_library(arguments: list[str]):
    run = in_child(f"import atexit, sys; atexit.register(lambda: {PRINT_HEAVY}); import combemb.__main__", *arguments)
    assert "Usage" in run.stdout, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_each_verb(verb: str):
    shown = done(verb, "--help").stdout
    assert "Usage" in shown
    assert "Example" in shown or verb in {"settings", "demo"}


def test_the_package_gives_its_names_when_they_are_asked_for():
    run = in_child(f"import sys, combemb; {PRINT_HEAVY}; print(sorted(set(combemb.__all__) - set(dir(combemb))))")
    assert run.stdout == "[]\n[]\n", run.stderr
    names = "CombEmb, CodeIndex, Discovery, discover, open_set_split, methods, __version__"
    code = (
        f"from combemb import {names}; import combemb; print([combemb.discover is discover, type(discover).__name__])"
    )
    assert in_child(code).stdout == "[True, 'function']\n"
    assert (
        in_child("import combemb; print(combemb.methods.names()[0], combemb.data.sources.names()[:1])").returncode == 0
    )
    assert set(combemb.__all__) == {*names.split(", ")}
    with pytest.raises(AttributeError, match="module 'combemb' has no attribute 'nope'"):
        combemb.nope  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nope'"):
        from combemb import nope  # noqa: F401


@pytest.mark.parametrize("error", ["AttributeError", "ImportError", "ValueError"])
def test_an_error_while_a_library_is_imported_is_shown(tmp_path: Path, error: str):
    (tmp_path / "torch.py").write_text(f"raise {error}('two builds that do not match')")
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    for code in ("from combemb import CombEmb", "import combemb; hasattr(combemb, 'CombEmb')"):
        run = in_child(start + code)
        assert run.returncode == 1
        assert f"{error}: two builds that do not match" in run.stderr
    code = f"{start} from combemb.cli import app; app()"
    run = in_child(code, "index", "nowhere")
    assert run.returncode == 1
    assert run.stderr.startswith("error: unexpected ")
    assert "two builds that do not match; the same command with --debug" in run.stderr
    assert run.stderr.count("\n") == 1
    run = in_child(code, "index", "nowhere", "--debug")
    assert "Traceback" in run.stderr
    assert f"{error}: two builds that do not match" in run.stderr


def test_modules_in_the_current_folder_are_found_after_all_others(tmp_path: Path):
    (tmp_path / "my_module.py").write_text("class MyMethod: ...")
    (tmp_path / "json.py").write_text("raise ImportError('a file of the user hides a library')")
    script = tmp_path / "bin" / "combemb"
    script.parent.mkdir()
    script.write_text(
        "import sys; from combemb.cli import app; app(['settings'], standalone_mode=False); import my_module\n"
        "print(sys.path.count(''), sys.path[-1] == '', my_module.__file__)"
    )
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines()[-1] == f"1 True {tmp_path / 'my_module.py'}", run.stderr
