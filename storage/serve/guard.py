"""Owns who may ask the page: the name it was asked under, the token, other sites. Does not own what it answers.

A page on loopback can be reached by every site that the user's browser shows. Such a site may give its own name our address
(DNS rebinding): only our names and plain addresses are answered. It may send requests: other sites are refused, other than
by a link that a person follows.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer that has none of that name."""


@dataclass(frozen=True)
class Door:
    """Where the page is, and what is asked of those who come: `token` "" = nothing."""

    host: str
    port: int
    token: str = ""

    @property
    def cookie(self) -> str:
        return f"specsweep_{self.port}"  # browsers keep the cookies of all ports of a host together

    @property
    def address(self) -> str:
        """What to open; with the token, which the browser then keeps."""
        host = socket.gethostname() if self.host in ("", "0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/{f'?token={self.token}' if self.token else ''}"


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


class Guard:
    """Asks everyone at the door before the page does anything."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door
        own = () if is_loopback(door.host) else (socket.gethostname(), socket.getfqdn())
        self._names = {name.lower() for name in ("localhost", door.host, *own)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refusal(Request(scope)) or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """What is answered instead; None lets the request in."""
        if not self._is_ours(request.headers.get("host", "")):
            return PlainTextResponse("This page answers under its own names only. Open the address that it printed.\n", 421)
        if not _is_own_site(request):
            return PlainTextResponse("Other sites may link to this page, and no more.\n", 403)
        if not self._door.token:
            return None
        return self._asked_for_token(request)

    def _is_ours(self, host: str) -> bool:
        """Whatever the port: a tunnel has another one. An address in figures is never another site's name."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or _is_address(name)

    def _asked_for_token(self, request: Request) -> Response | None:
        if self._is_token(request.query_params.get("token", "")):
            return self._remembered(request)
        kept = request.cookies.get(self._door.cookie, "")
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(kept) or self._is_token(sent):
            return None
        return PlainTextResponse(
            "A token is asked for here. Open the address that the command printed, with ?token=...\n", 401
        )

    def _is_token(self, told: str) -> bool:
        return secrets.compare_digest(told.encode(errors="replace"), self._door.token.encode())

    def _remembered(self, request: Request) -> Response:
        """The same page at an address without the token: it would stay in the history."""
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        answer = RedirectResponse(f"{_path(request)}{f'?{urlencode(rest)}' if rest else ''}", 303)
        answer.set_cookie(self._door.cookie, self._door.token, httponly=True, samesite="lax")
        return answer


def _path(request: Request) -> str:
    """The path, which never names another host."""
    return "/" + request.url.path.lstrip("/")


def _is_own_site(request: Request) -> bool:
    """Other ports of this machine are another site, too. Who is no browser sends no such header."""
    site, target = request.headers.get("sec-fetch-site", "none"), request.headers.get("sec-fetch-dest")
    return site in ("none", "same-origin") or target == "document"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
