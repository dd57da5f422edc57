"""Learn one representation for labelled classes and for classes that nobody has named yet.

Notation, used in every shape comment of the package:

    N  items               M  meta-class sets            F  features of the input
    B  batch               K  meta-classes per set       V  views of an item, view 0 is the clean one
    Q  queries             d  length of a sub-vector     z  embedding, M sub-vectors of length 1/sqrt(M)
    C  seen classes        D  = M * d, length of z       bits = M * log2(K)

Words, one per concept: *seen* classes have labels, *novel* ones have none. *Labels* are what a model may see, -1 where
an item is unlabelled; *targets* are the hidden truth and reach metrics only. *Codes* are rows of small integers, the
*codebook* turns them into vectors; *queries* search a *database* of codes.
"""

import importlib
from typing import TYPE_CHECKING, Any

from combemb.system.version import __version__

if TYPE_CHECKING:
    from combemb import methods
    from combemb.data import open_set_split
    from combemb.discovery.discovering import discover
    from combemb.discovery.result import Discovery
    from combemb.methods.combemb import CombEmb
    from combemb.search.index import CodeIndex

__all__ = ["CodeIndex", "CombEmb", "Discovery", "__version__", "discover", "methods", "open_set_split"]

_HOMES = {
    "CodeIndex": "combemb.search.index",
    "CombEmb": "combemb.methods.combemb",
    "Discovery": "combemb.discovery.result",
    "discover": "combemb.discovery.discovering",
    "open_set_split": "combemb.data",
}
_ROOMS = ("backbones", "collection", "data", "discovery", "learning", "methods", "search", "system")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


def __getattr__(name: str) -> Any:
    """Import public names and sub-packages when they are first used: torch alone takes more than a second."""
    if name not in _HOMES and name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOMES.get(name, f"{__name__}.{name}"))
    except AttributeError as error:  # otherwise `from combemb import` and hasattr report a missing name
        raise ImportError(f"cannot import {name!r} from {__name__!r}: {error}") from error
    value = globals()[name] = getattr(module, name) if name in _HOMES else module
    return value
