"""Novel classes: clusters, their number, and metrics. Arrays in, arrays out."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from combemb.discovery.discovering import NothingToDiscover, Unsure, discover
    from combemb.discovery.metrics import agreement, novelty_auroc
    from combemb.discovery.result import Discovery

__all__ = ["Discovery", "NothingToDiscover", "Unsure", "agreement", "discover", "novelty_auroc"]

_HOMES = {
    **dict.fromkeys(("NothingToDiscover", "Unsure", "discover"), "discovering"),
    **dict.fromkeys(("agreement", "novelty_auroc"), "metrics"),
    "Discovery": "result",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a search needs no discovery, and scipy's optimisers are slow to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
