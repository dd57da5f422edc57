"""Novel classes: clusters, their number, and metrics. Arrays in, arrays out."""

from combemb.discovery.discovering import NothingToDiscover, Unsure, discover
from combemb.discovery.metrics import agreement, novelty_auroc
from combemb.discovery.result import Discovery

__all__ = ["Discovery", "NothingToDiscover", "Unsure", "agreement", "discover", "novelty_auroc"]
