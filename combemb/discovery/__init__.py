"""Novel classes: clusters, their number, and metrics. Arrays in, arrays out."""

from combemb.discovery.discovering import NothingToDiscover, discover
from combemb.discovery.metrics import agreement, novelty_auroc
from combemb.discovery.result import Discovery

__all__ = ["Discovery", "NothingToDiscover", "agreement", "discover", "novelty_auroc"]
