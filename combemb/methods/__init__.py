"""The methods, one file each: `names()` lists them, `get(name)` returns a class, `load(folder)` a fitted method."""

import importlib
import inspect
import pkgutil
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path

from combemb.learning.method import Method
from combemb.learning.run_folder import CONFIG, RunFolder
from combemb.learning.saving import BUILT_IN
from combemb.system.errors import require

__all__ = ["Method", "get", "load", "names"]

ENTRY_POINT_GROUP = "combemb.methods"  # in which other packages register their methods


def names() -> list[str]:
    """Return the names of all methods: the files in this folder, and the entry points of other packages.

    Examples
    --------
    >>> {"combemb", "itq"} <= set(names())
    True
    """
    return sorted({*_built_in(), *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def get(name: str) -> type[Method]:
    """Return the class of a method.

    Parameters
    ----------
    name : str
        One of `names()`, or `package.module:Class` for any class that can be imported.

    Returns
    -------
    type
        A subclass of `Method`.

    Examples
    --------
    >>> get("itq").__name__
    'ITQ'
    >>> get("combemb.methods.itq:ITQ").__name__
    'ITQ'
    """
    if name in _built_in():
        module = importlib.import_module(f"{BUILT_IN}{name}")
        found = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method)]
        own = [c for c in found if c.__module__ == module.__name__ and not inspect.isabstract(c)]
        require(len(own) == 1, f"{module.__file__} defines {len(own)} methods; a file has one")
        return own[0]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            return _checked(point.load(), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"cannot import the method {name!r} ({point.value}): {error}; fix its package") from error
    module_name, colon, path = name.partition(":")
    if not colon:
        raise ValueError(
            f"there is no method {name!r}; choose one of {', '.join(names())}, or package.module:Class for your own"
        )
    try:
        cls = attrgetter(path)(importlib.import_module(module_name))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"cannot import the method {name!r}: {error}; is its package installed?") from error
    return _checked(cls, name)


def load(folder: str | Path) -> Method:
    """Return the fitted method of a run folder, whichever method it is.

    If the method is from another package, the module that run.json names is imported.
    """
    run = RunFolder(folder)
    name = run.config()["method"]
    try:
        cls = get(name)
    except ValueError as error:
        raise ValueError(f"cannot load {run.folder / CONFIG}: {error}") from error
    return cls.load(folder)


def _built_in() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]


def _checked(cls: object, name: str) -> type[Method]:
    if not isinstance(cls, type) or not issubclass(cls, Method):
        raise ValueError(f"{name!r} is not a method; give a subclass of combemb.methods.Method")
    return cls
