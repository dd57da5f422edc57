"""The page, its files, the form that asks for the token, and the API as a page."""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from starlette.staticfiles import StaticFiles

from combemb.explorer.pages import TEMPLATES
from combemb.explorer.server.access import COOKIE, Access

STATIC = Path(__file__).parents[2] / "static"
SECONDS_AFTER_WRONG = 0.5
MAX_SESSION_SECONDS = 30 * 24 * 60 * 60


def plotly_script() -> Path:
    """Return plotly's script in its installed wheel."""
    found = find_spec("plotly")
    assert found is not None, "combemb depends on plotly"
    assert found.origin is not None, "plotly is a package with files"
    return Path(found.origin).parent / "package_data" / "plotly.min.js"


def routes(description: Callable[[], dict[str, Any]], access: Access) -> APIRouter:
    """Return the routes; description: returns the OpenAPI description."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    def page(request: Request) -> Response:
        if not request.scope["state"]["is_known"]:
            return _form(401)
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    @router.get("/static/plotly.min.js")
    def plotly() -> FileResponse:
        return FileResponse(plotly_script(), media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    @router.post("/login")
    async def login(request: Request) -> Response:
        given = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0].strip()
        if not access.is_token(given):
            await asyncio.sleep(SECONDS_AFTER_WRONG)
            return _form(401, "This is not the token of this server.")
        answer = RedirectResponse("/", 303)
        age = MAX_SESSION_SECONDS
        answer.set_cookie(COOKIE, access.new_session(), max_age=age, httponly=True, samesite="strict", path="/")
        return answer

    router.include_router(description_routes(description))
    return router


def description_routes(description: Callable[[], dict[str, Any]]) -> APIRouter:
    """Return the routes of the API as a page and as a file; description: as for `routes`."""
    router = APIRouter(include_in_schema=False)

    @router.get("/api/openapi.json")
    def openapi() -> JSONResponse:
        return JSONResponse(description())

    @router.get("/api")
    def api() -> HTMLResponse:
        return HTMLResponse(TEMPLATES.get_template("api.html.j2").render(api=description()))

    return router


class Static(StaticFiles):
    """The files of the page; browsers ask each time whether they have changed."""

    def file_response(self, *arguments: object, **options: object) -> Response:
        """Return a file."""
        answer = super().file_response(*arguments, **options)  # type: ignore[arg-type]
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def _form(status: int, problem: str = "") -> HTMLResponse:
    return HTMLResponse(TEMPLATES.get_template("login.html.j2").render(problem=problem), status)
