"""`combemb cache`: what is in the cache, and how to make it smaller."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from combemb.cli.console import printable, running, say
from combemb.cli.options import Quiet

if TYPE_CHECKING:
    from combemb.backbones.cached import Cached

ACTIONS = ("show", "prune")


def cache(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="`show`, or `prune` to delete what is old.")] = "show",
    days: Annotated[float, typer.Option(min=0, help="Prune what was not used for so many days; 0 prunes all.")] = 30,
    quiet: Quiet = False,
) -> None:
    """Show what the cache holds, or delete what was not used lately.

    It holds the features of each image by each backbone and image size, and the weights of backbones after a first
    stage. An image that is added or has changed is extracted, no other; features of images that no longer exist stay
    until they are pruned. Of features, those that were extracted together are kept or deleted together. What is deleted
    is computed again when it is needed.

    Example: `combemb cache`, and `combemb cache prune --days 7`
    """
    from combemb.backbones.cached import cached, prune
    from combemb.backbones.feature_cache import cache_root

    with running(quiet):
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r}; choose one of {', '.join(ACTIONS)}")
        if action == "prune":
            deleted = prune(days)
            say(f"deleted from {len(deleted):,} folders: {_size(deleted)}")
        there = cached()
        say(f"{cache_root(None)}: folders: {len(there):,}, {_size(there)}")
        for found in there if action == "show" else ():
            of_features = f"{found.n_images:,} images, {found.n_views:,} views, {' and '.join(found.networks)}"
            of_weights = (
                f"weights of {found.networks[0]}" if found.networks else "a backbone whose training is unfinished"
            )
            about = of_features.rstrip(", ") if found.has_features else of_weights
            used = datetime.fromtimestamp(found.used).strftime("%Y-%m-%d")
            say(f"  {decimal(found.n_bytes):>9}  used {used}  {about}  {printable(found.path.name)}")


def _size(found: list[Cached]) -> str:
    return decimal(sum(one.n_bytes for one in found))
