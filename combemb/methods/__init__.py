"""The methods, one file each: `names()` lists them, `get(name)` is the class, `load(folder)` a fitted one."""

import importlib
import pkgutil
from pathlib import Path

from combemb.learning.method import Method
from combemb.learning.run_folder import Run

__all__ = ["Method", "get", "load", "names"]


def names() -> list[str]:
    """All methods, by the names of their files.

    >>> {"combemb", "itq"} <= set(names())
    True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> type[Method]:
    """The class of a method.

    >>> get("itq").__name__
    'ITQ'
    """
    if name not in names():
        raise ValueError(f"there is no method {name!r}; choose one of {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method)]
    return next(c for c in classes if c.__module__ == module.__name__)


def load(folder: str | Path) -> Method:
    """A fitted method from its run folder, whichever method it is."""
    return get(Run(folder).config()["method"]).load(folder)
