"""Items: the map, classes, pages of items, pictures."""

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Response

from combemb.data.entries import Entry
from combemb.explorer.server import bodies, clusters, messages
from combemb.explorer.server.current import Current
from combemb.explorer.server.embedding import check_rows
from combemb.explorer.server.pictures import PICTURE_SIDE, SIDES
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.snapshot import REJECTED, Snapshot

Responses = dict[int | str, dict[str, Any]]

MAX_ITEMS = 500  # of a page
BINARY: Responses = {200: {"content": {"application/octet-stream": {}}, "description": "Numbers, little-endian."}}
JPEG: Responses = {200: {"content": {"image/jpeg": {}}, "description": "A picture."}}
KEPT = "private, max-age=604800, immutable"  # an address with the version of the discovery always means the same

Place = Annotated[int, Query(ge=0, lt=2**31)]


class Binary(Response):
    """Numbers as they are in memory."""

    media_type = "application/octet-stream"


class Jpeg(Response):
    """A picture."""

    media_type = "image/jpeg"


def routes(current: Current) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["items"])

    @router.get("/map", response_class=Binary, responses=BINARY)
    def places() -> Binary:
        """Return the places of all items on the map: all x, then all y, as float32."""
        drawn = current.served.map()
        tag, n = current.served.snapshot().items.tag, len(drawn.places)
        headers = {"X-Combemb-Items": str(n), "X-Combemb-Discovery": tag}
        return Binary(drawn.places.T.astype("<f4").tobytes(), headers=headers)

    @router.get("/assignment", response_class=Binary, responses=BINARY)
    def assignment() -> Binary:
        """Return numbers of classes (int32), flags and confidences (uint8) of all items."""
        shown = current.served.snapshot()
        headers = {"X-Combemb-Items": str(len(shown)), "X-Combemb-State": shown.state}
        return Binary(shown.assignment, headers=headers)

    @router.get("/clusters")
    def listed() -> messages.ClusterList:
        """List all classes, those without a name first."""
        return clusters.cluster_list(current.served.snapshot())

    @router.get("/items")
    def page(
        *,
        cluster: Annotated[str | None, Query(max_length=1_000)] = None,
        order: bodies.Order = "exemplars",
        start: Place = 0,
        n: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = 60,
        rejected: bool = False,
        rows: Annotated[
            str | None, Query(max_length=6_000, pattern=r"^\d{1,9}(,\d{1,9})*$", description="Such as 5,17,3.")
        ] = None,
    ) -> messages.ItemPage:
        """Return some of the items of a class, of all classes, or those of the given rows."""
        shown = current.served.snapshot()
        if rows is not None:
            asked = [int(row) for row in rows.split(",")]
            if len(asked) > MAX_ITEMS:
                raise Refused(422, "invalid", f"rows: there are {len(asked)}; at most {MAX_ITEMS} are listed at a time")
            check_rows(shown, asked)
            chosen = np.asarray(asked)
        else:
            chosen = _chosen(shown, cluster, order, rejected)
        some = chosen[start : start + n] if rows is None else chosen
        items = [clusters.item(shown, int(row)) for row in some]
        return messages.ItemPage(state=shown.state, total=len(chosen), start=start, items=items)

    @router.get("/items/{row}/thumbnail", response_class=Jpeg, responses=JPEG)
    def thumbnail(row: int, side: int = 128, v: str = "") -> Jpeg:
        """Return the picture of an item, small."""
        return _jpeg(current, _item(current, row), _side(side), v)

    @router.get("/items/{row}/picture", response_class=Jpeg, responses=JPEG)
    def picture(row: int, v: str = "") -> Jpeg:
        """Return the picture of an item."""
        return _jpeg(current, _item(current, row), PICTURE_SIDE, v)

    @router.get("/entries/{entry}/thumbnail", response_class=Jpeg, responses=JPEG)
    def thumbnail_of_entry(entry: int, side: int = 128, v: str = "") -> Jpeg:
        """Return the picture of an entry of the index, small."""
        return _jpeg(current, _entry(current, entry), _side(side), v)

    @router.get("/entries/{entry}/picture", response_class=Jpeg, responses=JPEG)
    def picture_of_entry(entry: int, v: str = "") -> Jpeg:
        """Return the picture of an entry of the index."""
        return _jpeg(current, _entry(current, entry), PICTURE_SIDE, v)

    return router


def _chosen(shown: Snapshot, cluster: str | None, order: bodies.Order, rejected: bool) -> np.ndarray:
    number = None if cluster is None else shown.number(cluster)
    return shown.rows("row" if rejected else order, REJECTED if rejected else number)


def _item(current: Current, row: int) -> Entry:
    shown = current.served.snapshot()
    check_rows(shown, [row])
    return Entry(str(shown.items.ids[row]), shown.items.paths[row])


def _entry(current: Current, entry: int) -> Entry:
    entries = current.served.collection().entries
    if not 0 <= entry < len(entries):
        raise Refused(404, "missing", f"there is no entry {entry}; there are {len(entries):,}")
    about = entries.slice(entry, 1).to_pylist()[0]
    return Entry(about["id"], about["path"])


def _side(side: int) -> int:
    if side not in SIDES:
        raise Refused(422, "invalid", f"side: {side} is none of {', '.join(map(str, SIDES))}")
    return side


def _jpeg(current: Current, entry: Entry, side: int, version: str) -> Jpeg:
    is_kept = version == current.served.snapshot().items.tag
    return Jpeg(current.served.pictures.jpeg(entry, side), headers={"Cache-Control": KEPT} if is_kept else None)
