"""What every request passes before a route sees it, and the headers that every answer has."""

import http.cookies

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from combemb.explorer.server.access import COOKIE, SAFE_METHODS, Access
from combemb.explorer.server.problems import Refused, bug
from combemb.explorer.server.uploads import MAX_BYTES

MAX_JSON_BYTES, MAX_LOGIN_BYTES = 4_000_000, 4_000
MAX_AT_ONCE = 64  # requests; a browser has six connections to a server
MAX_UNKNOWN_AT_ONCE = 8  # requests without the token, which cannot take the places of the others
RECEIVE_SECONDS, RECEIVE_IMAGE_SECONDS = 10.0, 60.0  # until the whole body is there
UPLOADS = "/image"  # the end of paths that take an image
HEADERS = {
    "content-security-policy": (
        # plotly's WebGL compiles how it draws points with `Function`; the page inserts texts as text nodes only
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, browsers would not say where the form of the token comes from
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Guard:
    """Refuse requests from elsewhere, without the token, of wrong types, too long, too slow or too many."""

    def __init__(self, app: ASGIApp, access: Access):
        self.app, self.access = app, access
        self.n_known = self.n_unknown = 0  # requests that are worked on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused.answer()(scope, receive, send_with_headers)
            return
        is_known = scope["state"]["is_known"]
        self._count(is_known, 1)
        try:
            await self.app(scope, in_time(receive, _seconds(scope["path"])), send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # answered here, so that this answer has the headers too
            if has_begun:
                raise
            await bug(error).answer()(scope, receive, send_with_headers)
        finally:
            self._count(is_known, -1)

    def _count(self, is_known: bool, step: int) -> None:
        if is_known:
            self.n_known += step
        else:
            self.n_unknown += step

    def _refused(self, scope: Scope) -> Refused | None:
        """Return why a request is not passed on; None if it is."""
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        if not self.access.knows_host(headers):
            return Refused(403, "origin", "this server has another name", "use its address, or allow it with --name")
        if not self.access.is_same_site(method, headers):
            return Refused(403, "origin", "this request comes from another site")
        is_known = self.access.is_known(headers, _session(headers))
        scope.setdefault("state", {})["is_known"] = is_known
        if not is_known and path not in {"/", "/login"}:
            return Refused(401, "token", "this server needs its token", "open / in a browser, or send it as a bearer")
        if method not in SAFE_METHODS and (refused := _wrong_body(method, path, headers)) is not None:
            return refused
        if self.n_known >= MAX_AT_ONCE if is_known else self.n_unknown >= MAX_UNKNOWN_AT_ONCE:
            return Refused(503, "overloaded", "too many requests at a time")
        return None


def in_time(receive: Receive, seconds: float) -> Receive:
    """Return a function that receives the parts of a body, and refuses if waiting for them takes too long in total."""
    left, is_complete = seconds, False

    async def receive_in_time() -> Message:
        nonlocal left, is_complete
        if is_complete:  # what comes now is the end of the connection, which takes as long as the answer
            return await receive()
        began = anyio.current_time()
        with anyio.move_on_after(left):
            message = await receive()
            left -= anyio.current_time() - began
            is_complete = not message.get("more_body", False)
            return message
        raise HTTPException(408, f"the body did not arrive in {seconds:g} seconds")

    return receive_in_time


def _seconds(path: str) -> float:
    return RECEIVE_IMAGE_SECONDS if path.endswith(UPLOADS) else RECEIVE_SECONDS


def _session(headers: Headers) -> str | None:
    try:
        found = http.cookies.SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except http.cookies.CookieError:
        return None
    return None if found is None else found.value


def _wrong_body(method: str, path: str, headers: Headers) -> Refused | None:
    """Return what is wrong with the length or the type of a body."""
    length = headers.get("content-length")
    if length is None and "transfer-encoding" in headers:
        return Refused(411, "length", "send the length of the body: Content-Length")
    n_bytes = int(length) if length is not None and length.isascii() and length.isdigit() else 0
    is_image = path.endswith(UPLOADS)
    limit = MAX_BYTES if is_image else MAX_LOGIN_BYTES if path == "/login" else MAX_JSON_BYTES
    if n_bytes > limit:
        return Refused(413, "too_large", f"the body has {n_bytes:,} bytes; at most {limit:,} are taken")
    if n_bytes == 0 and method == "DELETE":
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if path == "/login":
        is_right, needed = kind == "application/x-www-form-urlencoded", "application/x-www-form-urlencoded"
    elif is_image:
        is_right, needed = kind.startswith("image/") or kind == "application/octet-stream", "image/*"
    else:
        is_right, needed = kind == "application/json", "application/json"
    return None if is_right else Refused(415, "media_type", f"the body is {kind or 'of no type'}; send {needed}")
