"""Changes of classes: made by the functions that `combemb classes` uses, on the disk before the answer."""

import threading

import numpy as np
from fastapi import APIRouter

from combemb.collection import changes, class_log
from combemb.collection.classes import Classes
from combemb.collection.splitting import parts_of
from combemb.explorer.server import bodies, clusters, messages
from combemb.explorer.server.current import Current
from combemb.explorer.server.embedding import check_rows
from combemb.explorer.server.served import Served
from combemb.explorer.server.snapshot import Snapshot

WAIT_SECONDS = 2.0  # for another process that writes the run folder
MAX_LISTED = 100


def routes(current: Current) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["changes"])
    one_at_a_time = threading.Lock()  # requests wait for each other here, so that they do not time out there

    @router.post("/changes")
    def change(asked: bodies.AnyChange) -> messages.Changed:
        """Name, merge, split, move, reject or undo; the answer comes when the change is on the disk."""
        served = current.served
        with one_at_a_time:
            parts = _parts(served, asked)
            with served.folder.written(WAIT_SECONDS):
                before = served.snapshot(asked.state)
                made = _made(before, asked, parts)
                after = served.change(made, before)
        effects = changes.effects(made, after.classes)
        undone = before.classes.changes[-1] if made.kind == "undo" else None
        text = "; ".join(map(str, effects)) if undone is None else f"undone: {_text(undone)}"
        groups = [messages.Group(n=effect.n, to=effect.target) for effect in effects]
        return messages.Changed(text=text, groups=groups, clusters=clusters.cluster_list(after))

    @router.get("/changes")
    def listed() -> messages.SaidList:
        """List the changes that stand, the last first."""
        shown = current.served.snapshot()
        last = shown.classes.changes[::-1][:MAX_LISTED]
        said = [messages.Said(kind=change.kind, text=_text(change)) for change in last]
        return messages.SaidList(state=shown.state, changes=said)

    return router


def _text(change: class_log.Change) -> str:
    n = sum(map(len, change.groups))
    to = f" -> {change.to}" if change.to is not None else ""
    return f"{change.kind} {' '.join(change.clusters)}{to} ({n:,} item{'' if n == 1 else 's'})"


def _parts(served: Served, asked: bodies.AnyChange) -> list[list[str]]:
    """Divide a class that is to be split by itself, before anybody has to wait for the run folder."""
    if not isinstance(asked, bodies.Split) or asked.items is not None:
        return []
    classes = served.snapshot(asked.state).classes
    with served.embedding:
        return parts_of(served.path, classes, asked.cluster, asked.into, progress=False)


def _made(shown: Snapshot, asked: bodies.AnyChange, parts: list[list[str]]) -> class_log.Change:
    classes: Classes = shown.classes
    match asked:
        case bodies.Name():
            return changes.name(classes, asked.cluster, asked.to)
        case bodies.Merge():
            return changes.merge(classes, asked.clusters)
        case bodies.Split():
            groups = parts if asked.items is None else [_ids(shown, asked.items)]
            return changes.split(classes, asked.cluster, groups)
        case bodies.Move():
            return changes.move(classes, asked.to, _ids(shown, asked.items))
        case bodies.Reject():
            return changes.reject(classes, asked.cluster, _ids(shown, asked.items or []))
        case bodies.Undo():
            return changes.undo(classes)


def _ids(shown: Snapshot, rows: list[int]) -> list[str]:
    check_rows(shown, rows)
    ids: list[str] = shown.items.ids[np.array(rows, dtype=np.int64)].tolist()
    return list(dict.fromkeys(ids))
