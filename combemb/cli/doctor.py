"""`combemb doctor`: what this installation consists of, and what is missing."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer

from combemb.cli.console import say
from combemb.system.version import __version__

REQUIREMENT = re.compile(r"""([\w.-]+)(?:.*\bextra == ["']([\w-]+)["'])?""")  # name of the package, and its extra
NO_EXTRA, FOR_DEVELOPERS = "", "dev"


def doctor() -> None:
    """Show versions, devices, threads and the cache, and how to install what is missing.

    The exit code is 1 if a required package is missing or cannot be imported. Include the output when you report a bug.

    Example: `combemb doctor`
    """
    say(f"combemb {__version__}, Python {platform.python_version()}, {platform.platform()}")
    say(f"installed in {Path(__file__).parents[1]}")
    packages = _packages()
    is_whole = True
    for name in packages.pop(NO_EXTRA, []):
        found = _version(name)
        is_whole &= found is not None
        say(f"  {name} {found}" if found else f"  {name} is missing; pip install {name}")
    is_whole &= _tell_machine()
    for extra, names in packages.items():
        missing = [name for name in names if _version(name) is None]
        there = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        line = f'not installed ({", ".join(missing)}); pip install "combemb[{extra}]"'
        say(f"extra {extra}: {line if missing else there}")
    if not is_whole:
        raise typer.Exit(1)


def _packages() -> dict[str, list[str]]:
    """Return the packages that combemb declares, for each extra; "" has the required ones."""
    try:
        lines = requires("combemb") or []
    except PackageNotFoundError:  # a folder of sources that is merely on the path
        say("combemb itself was not installed by pip, so its packages are unknown; pip install -e . in its folder")
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        match = REQUIREMENT.match(line)
        assert match, f"pip wrote the requirement {line!r}"
        found.setdefault(match[2] or NO_EXTRA, []).append(match[1])
    found.pop(FOR_DEVELOPERS, None)
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _tell_machine() -> bool:
    """Show devices, threads and cache; return whether torch and FAISS, which have compiled parts, can be imported."""
    try:
        import faiss
        import torch

        from combemb.backbones.feature_cache import cache_root
        from combemb.system.machine import DEVICES, is_available, n_cores, resolved
    except Exception as error:  # a build that does not match the machine makes them raise nearly anything
        say(f"torch or FAISS cannot be imported: {type(error).__name__}: {error}; install them again")
        return False
    cards = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    there = [f"cuda ({cards})" if name == "cuda" else name for name in DEVICES[1:] if is_available(name)]
    say(f"devices: {', '.join(there)}; auto is {resolved('auto').type}")
    limit = os.environ.get("OMP_NUM_THREADS")
    threads = f"{torch.get_num_threads()} of torch, {faiss.omp_get_max_threads()} of FAISS"
    say(f"threads: {threads}, for {n_cores()} usable cores{f'; OMP_NUM_THREADS={limit}' if limit else ''}")
    say(f"cache: {cache_root(None)}")
    return True
