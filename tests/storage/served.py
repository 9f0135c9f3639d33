"""Owns a page of `storage.serve` that runs for tests, and probes that a test puts into it. Does not own what is asserted."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from browser import REPORTER, Seen, visit
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from storage.serve.guard import Door
from storage.serve.pages import Limits, create_app
from storage.serve.shelf import Shelf

FRAME = """<!doctype html><iframe src="{}" style="width:{}px;height:1500px;border:0"></iframe><script>
const shown = document.querySelector("iframe");
setInterval(() => {{ document.documentElement.dataset.told = shown.contentDocument.documentElement.dataset.told; }}, 100);
</script>"""


@dataclass
class Served:
    """A page on loopback. `get` asks it; `look` opens it in a browser, with a script of the test in it."""

    port: int
    scripts: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, *, headers: dict[str, str] | None = None, **parameters: Any) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", params=parameters or None, headers=headers, timeout=60)

    def wait_for(self, text: str, path: str = "/rows") -> str:
        """The page, once it says so."""
        until = time.monotonic() + 60
        while text not in (page := self.get(path).text):
            assert time.monotonic() < until, page
            time.sleep(0.1)
        return page

    def look(self, path: str, script: str, folder: Path, *, width: int = 1200, is_dark: bool = False) -> Seen:
        self.scripts[path] = script
        address = f"http://127.0.0.1:{self.port}{path}{'&' if '?' in path else '?'}probe={width}"
        return visit(address, folder, width=width, is_dark=is_dark, is_timed=True)


class Probed:
    """The page with a test's script in it, which its policy would not let in; in a frame where no window is so narrow."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        width = int(Request(scope).query_params.get("probe", 0)) if scope["type"] == "http" else 0
        if not width:
            await self._app(scope, receive, send)
        elif width < 500:
            address = str(Request(scope).url).replace(f"probe={width}", "probe=1000")
            await HTMLResponse(FRAME.format(address.replace("&", "&amp;"), width))(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []

        async def keep(message: Any) -> None:
            parts.append(message.get("body", b""))

        plain = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
        await self._app({**scope, "headers": plain}, receive, keep)
        url = Request(scope).url
        script = next(
            script
            for path, script in self._served.scripts.items()
            if str(url).startswith(f"{url.scheme}://{url.netloc}{path}")
        )
        content = b"".join(parts).decode().replace("</body>", f"{REPORTER % script}</body>")
        await HTMLResponse(content)(scope, receive, send)


@contextlib.contextmanager
def serving(folder: Path, *, token: str = "", limits: Limits | None = None) -> Iterator[Served]:
    """A page over this folder as long as the block lasts."""
    listener = socket.create_server(("127.0.0.1", 0))
    served = Served(listener.getsockname()[1])
    with contextlib.closing(Shelf(folder)) as shelf:
        app = create_app(shelf, Door("127.0.0.1", served.port, token), limits or Limits())
        server = uvicorn.Server(uvicorn.Config(Probed(app, served), log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.should_exit = True
            thread.join(10)
            listener.close()
