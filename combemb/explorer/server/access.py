"""Who may talk to the server: the name in Host, the site that a request comes from, and the token."""

import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from starlette.datastructures import Headers

from combemb.system.errors import require

COOKIE = "combemb_session"
MIN_TOKEN = 16  # characters
MAX_SESSIONS = 1_000
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(file: Path) -> str:
    """Return the token in a file, which is written with a new one if it does not exist."""
    try:
        with open(file, "x", opener=_private) as new:
            new.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    token = file.read_text().strip()
    require(len(token) >= MIN_TOKEN, f"the token in {file} has {len(token)} characters; use {MIN_TOKEN} or more")
    require(token.isascii() and token.isprintable(), f"the token in {file} has characters that no header can have")
    return token


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@dataclass
class Access:
    """The rules of one server. token: None if none is needed; hosts: names that Host may have besides addresses."""

    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    _sessions: dict[bytes, None] = field(default_factory=dict, repr=False)

    def knows_host(self, headers: Headers) -> bool:
        """Return whether Host is an address or a name of this server: a name that an attacker made lead here is not."""
        host = headers.get("host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
        if name in {"localhost", socket.gethostname(), *self.hosts}:
            return True
        try:  # without a token the server is on loopback
            return ipaddress.ip_address(name).is_loopback or self.token is not None
        except ValueError:
            return False

    def is_same_site(self, method: str, headers: Headers) -> bool:
        """Return whether a request comes from a page of this server, or from no page at all."""
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if method in SAFE_METHODS:  # a link from elsewhere is fine, a picture or a script in a page is not
            return site in {None, "same-origin", "none"} or mode == "navigate"
        if site not in {None, "same-origin"}:
            return False
        origin = headers.get("origin")
        return origin is None or origin.partition("://")[2] == headers.get("host")

    def is_known(self, headers: Headers, cookie: str | None) -> bool:
        """Return whether a request has the token or a session; always if there is no token."""
        if self.token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return cookie is not None and _digest(cookie) in self._sessions

    def is_token(self, given: str) -> bool:
        """Compare with the token in constant time."""
        return self.token is not None and hmac.compare_digest(_digest(given), _digest(self.token))

    def new_session(self) -> str:
        """Return the text of a cookie that is known from now on, until the server stops."""
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = None
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
