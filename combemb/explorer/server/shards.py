"""Search of a sharded index over HTTP, without a page: the explorer holds all items, which these are too many for."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, Field

from combemb.collection.indexed import SearchResult
from combemb.explorer.server import bodies
from combemb.explorer.server.access import Access
from combemb.explorer.server.app import RESPONSES, described
from combemb.explorer.server.guard import Guard
from combemb.explorer.server.problems import Refused, answer_problems
from combemb.explorer.server.routes.pages import description_routes
from combemb.explorer.server.routes.search import IMAGE, K
from combemb.explorer.server.uploads import Turns, uploaded
from combemb.system.version import __version__

ABOUT = """Search an index that is spread over a cluster. While shards are being loaded again after a machine was lost,
answers name them in `missing`: the hits are then those of the other shards."""


class Answer(Protocol):
    """What a search found, and which shards did not answer."""

    @property
    def results(self) -> list[SearchResult]:
        """One per query."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the shards that did not answer."""

    @property
    def n_missing(self) -> int:
        """Number of entries in these shards."""


class Searched(Protocol):
    """What is searched, such as a `ShardedCollection`."""

    def __len__(self) -> int:
        """Return the number of entries."""

    @property
    def shards(self) -> Sequence[str]:
        """Names of all shards."""

    @property
    def missing_now(self) -> tuple[str, ...]:
        """Names of the shards that would be missing in an answer now."""

    def answer(self, queries: Any, k: int) -> Answer:
        """Return the k entries nearest to each query: embeddings, features or the path of an image."""


class Search(bodies.Asked):
    """Features to search by, as the model was fitted on."""

    x: Annotated[list[bodies.Vector], Field(min_length=1, max_length=1_000)]
    k: Annotated[int, Field(ge=1, le=1_000)] = 20


class Hit(BaseModel):
    """An entry that a query found."""

    id: str
    path: str | None
    label: str | None
    score: float


class Found(BaseModel):
    """The hits of each query, best first, and which shards did not answer."""

    hits: list[list[Hit]]
    missing: list[str] = Field(description="Shards that did not answer; if there are none, the hits are exact.")
    n_missing: int = Field(description="Number of entries in these shards.")


class Index(BaseModel):
    """What is searched."""

    n_entries: int
    shards: list[str]
    missing: list[str] = Field(description="Shards that would be missing in an answer now.")


def shards_application(searched: Searched, access: Access) -> FastAPI:
    """Return the application that searches an index.

    Parameters
    ----------
    searched : Searched
    access : Access

    Returns
    -------
    FastAPI
    """
    options: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None, "redirect_slashes": False}
    app = FastAPI(title="combemb search", version=__version__, description=ABOUT, **options)
    answer_problems(app)
    app.include_router(_routes(searched), prefix="/api", responses=RESPONSES)
    app.include_router(description_routes(lambda: described(app)))
    app.add_middleware(Guard, access=access)
    return app


def _routes(searched: Searched) -> APIRouter:
    router, turns = APIRouter(tags=["search"]), Turns()

    @router.get("/index")
    def index() -> Index:
        """Tell what is searched, and what is missing at the moment."""
        return Index(n_entries=len(searched), shards=list(searched.shards), missing=list(searched.missing_now))

    @router.post("/search")
    def search(asked: Search) -> Found:
        """Find what is like each row of features."""
        if len({len(row) for row in asked.x}) > 1:
            raise Refused(422, "invalid", "x: its rows differ in length")
        return _found(searched.answer(np.array(asked.x, dtype=np.float32), asked.k))

    @router.post("/search/image", openapi_extra=IMAGE)
    async def search_image(request: Request, k: K = 20) -> Found:
        """Find what is like an image, which is the body of the request."""

        def found(content: bytes) -> Found:
            with uploaded(content) as path:
                return _found(searched.answer(path, k))

        return await turns.of(request, found)

    return router


def _found(answer: Answer) -> Found:
    hits = [
        [Hit(id=hit.id, path=hit.path, label=hit.label, score=hit.score) for hit in result.hits]
        for result in answer.results
    ]
    return Found(hits=hits, missing=list(answer.missing), n_missing=answer.n_missing)
