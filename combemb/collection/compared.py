"""What changed from one run to another on the same data, such as after fitting again with more labels."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from combemb.collection.class_log import read_log
from combemb.collection.classes import Classes, applied
from combemb.collection.discovered import is_discovered
from combemb.learning.run_folder import TABLE, RunFolder
from combemb.system.errors import require
from combemb.system.tables import read_table


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes
    ----------
    counts : dict
        What is counted -> its numbers before and after.
    added, removed : list of str
        Seen classes that only the second, or only the first run has.
    n_common : int
        Number of items that are in both.
    moves : list of (str or None, str or None, int)
        From which class to which, and how many items; the most frequent first, None for rejected ones. A novel class
        without a name has another number in each run, so it counts as the same as the one that most of its items form.
    """

    counts: dict[str, tuple[int, int]]
    added: list[str]
    removed: list[str]
    n_common: int
    moves: list[tuple[str | None, str | None, int]]


def compared(before: str | Path, after: str | Path) -> Comparison:
    """Compare the discoveries of two run folders, with what people said about them.

    Parameters
    ----------
    before, after : path
        Run folders on the same data.

    Returns
    -------
    Comparison
    """
    old, new = _classes(Path(before)), _classes(Path(after))
    counts = {name: (count, _counts(new)[name]) for name, count in _counts(old).items()}
    old_of = dict(zip(old.ids, old.names, strict=True))
    common = [(old_of[name], now) for name, now in zip(new.ids, new.names, strict=True) if name in old_of]
    same = _same_unnamed(old, new, Counter(common))
    moves = Counter(pair for pair in common if pair[0] != pair[1] and pair not in same)
    return Comparison(
        counts=counts,
        added=sorted(new.seen - old.seen),
        removed=sorted(old.seen - new.seen),
        n_common=len(common),
        moves=[(was, now, n) for (was, now), n in moves.most_common()],
    )


def _classes(run: Path) -> Classes:
    RunFolder(run).config()
    require(is_discovered(run), f"nothing was discovered in {run} yet; discover first: combemb discover {run}")
    return RunFolder(run).read_unchanged(lambda: applied(read_table(run / TABLE)[0], read_log(run)))


def _counts(classes: Classes) -> dict[str, int]:
    novel = {name for name in classes.names if name is not None} - classes.seen
    return {
        "items": len(classes.ids),
        "labelled items": int(classes.is_labelled.sum()),
        "seen classes": len(classes.seen),
        "novel classes": len(novel),
        "items in novel classes": int(np.isin(classes.names, list(novel)).sum()) if novel else 0,
    }


def _same_unnamed(old: Classes, new: Classes, pairs: Counter[tuple[str | None, str | None]]) -> set[tuple[str, str]]:
    """Return pairs of classes without names, each of which has most of its items in the other."""
    most: list[dict[str, tuple[str | None, str | None]]] = [{}, {}]
    for pair, _ in pairs.most_common():
        for side in (0, 1):
            name = pair[side]
            if name is not None:
                most[side].setdefault(name, pair)
    return {
        (was, now)
        for was, now in most[0].values()
        if was is not None and now is not None and most[1][now] == (was, now)
        if not old.has_name(was) and not new.has_name(now)
    }
