"""Errors as the API answers them: a code for programs, a sentence for people, and what to do."""

import logging
import shlex
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from combemb.learning.one_writer import BeingWritten
from combemb.system.errors import UnknownData

LOG = logging.getLogger("combemb.explorer")
CODES = {404: "missing", 405: "missing", 408: "length"}  # of errors that the framework finds


class Reason(BaseModel):
    """What is wrong."""

    code: str = Field(description="One of the codes in docs/decisions/explorer.md.")
    message: str = Field(description="A sentence for people.")
    do: str | None = Field(None, description="A command or an action that helps.")


class Problem(BaseModel):
    """The answer to a request that cannot be fulfilled."""

    error: Reason


class Refused(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, code: str, message: str, do: str | None = None):
        super().__init__(message)
        self.status, self.reason = status, Reason(code=code, message=message, do=do)

    def answer(self) -> JSONResponse:
        """Return the answer."""
        headers = {"Retry-After": "1"} if self.status == 503 else None
        return JSONResponse(Problem(error=self.reason).model_dump(), self.status, headers)


def unavailable(run: Path, verb: str, what: str) -> Refused:
    """Return the error about something in a run folder that has to be made first, with the command that makes it."""
    return Refused(409, "unavailable", f"{run.name} has no {what} yet", f"combemb {verb} {shlex.quote(str(run))}")


def answer_problems(app: FastAPI) -> None:
    """Let errors of the package, of the framework and of our own code be answered in the one form."""

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return error.answer()

    @app.exception_handler(ValueError)
    async def wrong(_: Request, error: ValueError) -> JSONResponse:
        if isinstance(error, BeingWritten):
            return Refused(409, "busy", str(error), "wait until that is done").answer()
        if isinstance(error, UnknownData):
            return Refused(409, "unavailable", str(error)).answer()
        return Refused(400, "refused", str(error)).answer()

    @app.exception_handler(OSError)
    async def disk(_: Request, error: OSError) -> JSONResponse:
        LOG.error("cannot read or write", exc_info=error)
        return Refused(500, "internal", str(error)).answer()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return Refused(422, "invalid", f"{where or 'the body'}: {first['msg']}").answer()

    @app.exception_handler(HTTPException)
    async def of_framework(_: Request, error: HTTPException) -> JSONResponse:
        found = Refused(error.status_code, CODES.get(error.status_code, "refused"), str(error.detail)).answer()
        found.headers.update(error.headers or {})
        return found


def bug(error: Exception) -> Refused:
    """Return the answer to a request that our own code failed on, and log where."""
    LOG.error("a request failed", exc_info=error)
    return Refused(500, "internal", "an error of the server; its terminal shows where it came from")
