"""The application: routes, the guard before them, and what is stopped at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from combemb.explorer.server import work
from combemb.explorer.server.access import Access
from combemb.explorer.server.current import Current
from combemb.explorer.server.guard import Guard
from combemb.explorer.server.problems import Problem, answer_problems
from combemb.explorer.server.routes import changes, exports, items, jobs, pages, runs, search
from combemb.system.version import __version__

PROBLEMS = ("4XX", "5XX", "422")
RESPONSES: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in PROBLEMS}
ABOUT = """Look at what was found, name it, search it, export it, fit again.
`docs/decisions/explorer.md` of combemb says what the words mean: row, class, state, job."""


@dataclass(frozen=True)
class Options:
    """How a run is served. image_roots: folders outside the data whose pictures may be shown too."""

    run: Path
    access: Access = field(default_factory=Access)
    image_roots: tuple[Path, ...] = ()
    prepares: bool = True  # read the run, and draw its map if there is none, as the server starts


def application(options: Options) -> FastAPI:
    """Return the application that serves a run.

    Parameters
    ----------
    options : Options

    Returns
    -------
    FastAPI
    """
    current = Current(options.run, options.image_roots)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if options.prepares:
            await run_in_threadpool(work.prepare, current.jobs, current.served)
        try:
            yield
        finally:
            await run_in_threadpool(current.jobs.close)

    app = FastAPI(
        title="combemb explorer",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    answer_problems(app)
    for part in (runs, items, changes, search, exports, jobs):
        app.include_router(part.routes(current), prefix="/api", responses=RESPONSES)
    app.include_router(pages.routes(lambda: described(app), options.access))
    app.mount("/static", pages.Static(directory=pages.STATIC, follow_symlink=False, check_dir=False))
    app.add_middleware(Guard, access=options.access)
    app.state.current = current
    return app


def described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description; problems are JSON, also where the answer is a picture or a table."""
    api = app.openapi()
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
    for verbs in api["paths"].values():
        for route in verbs.values():
            for status in PROBLEMS:
                route["responses"][status]["content"] = content
    return api
