"""Owns a page of `storage.serve` that runs for tests, and probes that a test puts into it. Does not own what is asserted."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from browser import REPORTER, Seen, visit
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from storage.serve.guard import Door
from storage.serve.pages import Limits, create_app
from storage.serve.shelf import Shelf

PATIENCE_S = 200.0  # on a machine that is busy with other tests
FRAME = """<!doctype html><iframe src="{}" style="width:{}px;height:1500px;border:0"></iframe><script>
const here = document.documentElement.dataset, shown = document.querySelector("iframe");
setInterval(() => {{ here.told = shown.contentDocument?.documentElement?.dataset.told ?? ""; }}, 100);
</script>"""  # no window is narrower than 500


@dataclass
class Served:
    """A page on loopback. `get` asks it; `look` opens it in a browser, with a script of the test in it."""

    port: int
    probes: dict[str, str] = field(default_factory=dict)  # path → page, which no policy of ours is sent with

    def get(self, path: str, *, headers: dict[str, str] | None = None, **parameters: Any) -> httpx.Response:
        return httpx.get(
            f"http://127.0.0.1:{self.port}{path}", params=parameters or None, headers=headers, timeout=PATIENCE_S
        )

    def wait_for(self, text: str) -> str:
        """The list, once it says so."""
        return self._awaited(lambda page: text in page)

    def settled(self) -> str:
        """The list, once all that there is was read."""
        return self._awaited(lambda page: "state reading" not in page and "being worked out" not in page)

    def _awaited(self, is_there: Callable[[str], bool]) -> str:
        until = time.monotonic() + PATIENCE_S
        while not is_there(page := self.get("/rows").text):
            assert time.monotonic() < until, page
            time.sleep(0.2)
        return page

    def look(self, text: str, script: str, folder: Path, *, width: int = 1200, is_dark: bool = False) -> Seen:
        """What a script returns that a test puts into a page of this text, which was got here before."""
        self.probes = {
            "/probe": text.replace("</body>", f"{REPORTER % script}</body>"),
            "/frame": FRAME.format("/probe", width),
        }
        return self.visit("/probe" if width >= 500 else "/frame", folder, width=width, is_dark=is_dark)

    def visit(self, path: str, folder: Path, *, width: int = 1200, is_dark: bool = False) -> Seen:
        """The page as everyone gets it."""
        return visit(f"http://127.0.0.1:{self.port}{path}", folder, width=width, is_dark=is_dark)


class Probed:
    """The page, and beside it what a test wants to look at."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = self._served.probes.get(scope.get("path", ""))
        await (self._app if text is None else HTMLResponse(text))(scope, receive, send)


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
