"""`combemb cache`: what is in the cache of features, and how to make it smaller."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from combemb.cli.console import printable, running, say
from combemb.cli.options import Quiet

if TYPE_CHECKING:
    from combemb.backbones.cached import CachedFeatures

ACTIONS = ("show", "prune")


def cache(
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="`show`, or `prune` to delete old features.")
    ] = "show",
    days: Annotated[float, typer.Option(min=0, help="Prune what was not used for so many days; 0 prunes all.")] = 30,
    quiet: Quiet = False,
) -> None:
    """Show the features in the cache, or delete those that were not used lately.

    Features belong to a set of images: if one of them changes or is added, a fit extracts all of them again, and the
    old features stay until they are pruned. `combemb index --add` extracts new images only. Deleted features are
    extracted again when they are needed.

    Example: `combemb cache`, and `combemb cache prune --days 7`
    """
    from combemb.backbones.cached import cached_features, prune_features
    from combemb.backbones.feature_cache import cache_root

    with running(quiet):
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r}; choose one of {', '.join(ACTIONS)}")
        if action == "prune":
            deleted = prune_features(days)
            say(f"sets of images whose features were deleted: {len(deleted):,}, {_size(deleted)}")
        there = cached_features()
        say(f"{cache_root(None)}: sets of images with features: {len(there):,}, {_size(there)}")
        for found in there if action == "show" else ():
            about = f"{found.n_images:,} images, {found.n_views} views{'' if found.is_finished else ', unfinished'}"
            used = datetime.fromtimestamp(found.used).strftime("%Y-%m-%d")
            say(f"  {decimal(found.n_bytes):>9}  used {used}  {about}  {printable(found.path.name)}")


def _size(found: list[CachedFeatures]) -> str:
    return decimal(sum(features.n_bytes for features in found))
