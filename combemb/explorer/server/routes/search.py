"""Search, predict and embed: discovered items, features, and uploaded images."""

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request

from combemb.explorer.server import bodies, embedding, messages, searching
from combemb.explorer.server.current import Current
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.snapshot import Snapshot
from combemb.explorer.server.uploads import Turns

IMAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("image/*", "image/png")},
    }
}
K = Annotated[int, Query(ge=1, le=1_000)]
ClusterName = Annotated[str | None, Query(min_length=1, max_length=1_000)]


def routes(current: Current) -> APIRouter:
    """Return the routes."""
    router, turns = APIRouter(tags=["search"]), Turns()

    @router.post("/search")
    def search(asked: bodies.Search) -> messages.Found:
        """Find what is like an item, or like features."""
        served = current.served
        shown = served.snapshot()
        if (asked.row is None) == (asked.x is None):
            raise Refused(422, "invalid", "give either row or x, exactly one of the two")
        served.collection()
        if asked.x is not None:
            given = embedding.of_features(served, [asked.x])
            query = _query(predicted_first(shown, given))
            return searching.search(served, shown, given.z, query, asked.k, kind=asked.kind, cluster=asked.cluster)
        assert asked.row is not None
        z = embedding.of_rows(served, shown, [asked.row])
        number, confidence = int(shown.numbers[asked.row]), float(shown.items.confidence[asked.row])
        cluster = None if number < 0 else shown.names[number]
        query = messages.Query(row=asked.row, cluster=cluster, confidence=confidence)
        return searching.search(served, shown, z, query, asked.k, kind=asked.kind, cluster=asked.cluster)

    @router.post("/search/image", openapi_extra=IMAGE)
    async def search_image(
        request: Request, k: K = 20, kind: bodies.Kind | None = None, cluster: ClusterName = None
    ) -> messages.Found:
        """Find what is like an image, which is the body of the request."""

        def found(content: bytes) -> messages.Found:
            served = current.served
            shown = served.snapshot()
            served.collection()
            given = embedding.of_image(served, content)
            query = _query(predicted_first(shown, given))
            return searching.search(served, shown, given.z, query, k, kind=kind, cluster=cluster)

        return await turns.of(request, found)

    @router.post("/predict")
    def predict(asked: bodies.Features) -> messages.PredictedList:
        """Put features into classes: known ones, found ones, or neither."""
        shown = current.served.snapshot()
        return messages.PredictedList(items=embedding.predicted(shown, embedding.of_features(current.served, asked.x)))

    @router.post("/predict/image", openapi_extra=IMAGE)
    async def predict_image(request: Request) -> messages.Predicted:
        """Put an image, which is the body of the request, into a class: a known one, a found one, or neither."""

        def predicted(content: bytes) -> messages.Predicted:
            served = current.served
            return predicted_first(served.snapshot(), embedding.of_image(served, content))

        return await turns.of(request, predicted)

    @router.post("/embed")
    def embed(asked: bodies.Embed) -> messages.Embedded:
        """Return embeddings and codes of discovered items, or of features."""
        if (asked.rows is None) == (asked.x is None):
            raise Refused(422, "invalid", "give either rows or x, exactly one of the two")
        served = current.served
        if asked.rows is not None:
            return _embedded(current, embedding.of_rows(served, served.snapshot(), asked.rows))
        return _embedded(current, embedding.of_features(served, asked.x or []).z)

    @router.post("/embed/image", openapi_extra=IMAGE)
    async def embed_image(request: Request) -> messages.Embedded:
        """Return the embedding and the code of an image, which is the body of the request."""
        return await turns.of(
            request, lambda content: _embedded(current, embedding.of_image(current.served, content).z)
        )

    return router


def predicted_first(shown: Snapshot, given: embedding.Embedded) -> messages.Predicted:
    """Return the class of the first embedded item."""
    return embedding.predicted(shown, given)[0]


def _query(predicted: messages.Predicted) -> messages.Query:
    return messages.Query(row=None, cluster=predicted.name, confidence=predicted.confidence, kind=predicted.kind)


def _embedded(current: Current, z: np.ndarray) -> messages.Embedded:
    codebook = current.served.model().codebook
    codes = None if codebook is None else np.asarray(codebook.encode(z)).tolist()
    return messages.Embedded(z=z.tolist(), codes=codes)
