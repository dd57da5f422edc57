"""The classes of a snapshot as the API lists them."""

import numpy as np

from combemb.explorer.server.messages import Cluster, ClusterList, Item, Suggested
from combemb.explorer.server.snapshot import LABELLED, REJECTED, SAID, Snapshot

N_EXEMPLARS = 4


def cluster_list(shown: Snapshot) -> ClusterList:
    """Return all classes, those without a name first."""
    kept, n_classes = shown.numbers != REJECTED, len(shown.names)
    is_free = kept & ~shown.classes.is_labelled
    sums = np.bincount(shown.numbers[is_free], shown.items.confidence[is_free], minlength=n_classes)
    n_free = np.bincount(shown.numbers[is_free], minlength=n_classes)
    n_items = np.bincount(shown.numbers[kept], minlength=n_classes)
    n_left = np.bincount(shown.numbers[shown.is_left], minlength=n_classes)
    standing = shown.classes.changes
    clusters = [
        Cluster(
            number=number,
            name=name,
            is_seen=not shown.is_novel[number],
            is_named=shown.classes.has_name(name),
            colour=shown.colours[number],
            n_items=int(n_items[number]),
            n_labelled=int(n_items[number] - n_free[number]),
            n_left=int(n_left[number]),
            confidence=float(sums[number] / n_free[number]) if n_free[number] else None,
            suggestions=[Suggested(name=x.name, reason=x.reason) for x in shown.suggestions.get(name, [])],
            exemplars=shown.rows("exemplars", number)[:N_EXEMPLARS].tolist(),
        )
        for number, name in enumerate(shown.names)
    ]
    return ClusterList(
        state=shown.state,
        n_items=len(shown),
        n_left=int(shown.is_left.sum()),
        n_rejected=int((~kept).sum()),
        can_undo=" ".join([standing[-1].kind, *standing[-1].clusters]) if standing else None,
        clusters=clusters,
    )


def item(shown: Snapshot, row: int) -> Item:
    """Return an item as the API shows it."""
    number, flags = int(shown.numbers[row]), int(shown.flags[row])
    name, confidence = str(shown.items.ids[row]), float(shown.items.confidence[row])
    return Item(
        row=row,
        id=name,
        name=name.removeprefix(shown.items.folder),
        cluster=None if number == REJECTED else shown.names[number],
        number=number,
        found=str(shown.items.found.names[shown.items.found.assignment[row]]),
        is_labelled=bool(flags & LABELLED),
        is_said=bool(flags & SAID),
        is_novel=number != REJECTED and bool(shown.is_novel[number]),
        confidence=confidence,
        doubt=1 - confidence,
    )
