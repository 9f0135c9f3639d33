"""Owns looking at a page as a reader's browser does: headless Chromium, without a driver. Does not own what is asserted."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt install chromium)")

REPORTER = """<script>
addEventListener("error", (event) => console.error(event.message));
(async () => {
  await new Promise((done) => addEventListener("load", done));
  const told = await (async () => { %s })();
  document.documentElement.dataset.told = JSON.stringify(told ?? null);
})().catch((error) => console.error(String(error)));
</script>"""


@dataclass(frozen=True)
class Seen:
    told: Any  # what the script returned
    console: list[str]  # every line that the page wrote there
    dom: str = ""  # as it was at the end


def look(page: Path, script: str = "", *, width: int = 1200, is_dark: bool = False, is_timed: bool = False) -> Seen:
    """What the script returns on this page, and what the console says. `is_timed`: by the real clock."""
    content = page.read_text(encoding="utf-8")
    probe = page.with_name(f"{page.stem}.probe.html")
    probe.write_text(content.replace("</body>", f"{REPORTER % script}</body>"), encoding="utf-8")
    shown = probe if width >= 500 else _in_frame(probe, width)  # no window is narrower
    return visit(shown.as_uri(), page.parent, width=width, is_dark=is_dark, is_timed=is_timed)


def visit(address: str, folder: Path, *, width: int = 1200, is_dark: bool = False, is_timed: bool = False) -> Seen:
    """The same of a page as it is, whose own script may have told something; the browser keeps its profile in `folder`."""
    command = _command(address, folder / "profile", width, is_dark, is_timed)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'data-told="([^"]*)"', done.stdout)
    return Seen(json.loads(html.unescape(found[1])) if found else None, console, done.stdout)


def axe() -> str | None:
    """The source of axe-core, where the package that brings it is installed."""
    found = importlib.util.find_spec("axe_core_python")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8") if found and found.origin else None


def _command(address: str, profile: Path, width: int, is_dark: bool, is_timed: bool) -> list[str]:
    assert CHROMIUM is not None
    return [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"),
        *(
            "--allow-file-access-from-files",
            f"--user-data-dir={profile}",
            f"--window-size={max(width, 500)},1600",
        ),
        *(() if is_timed else ("--virtual-time-budget=20000",)),
        *(("--blink-settings=preferredColorScheme=0",) if is_dark else ()),
        *("--dump-dom", address),
    ]


def _in_frame(probe: Path, width: int) -> Path:
    frame = probe.with_name(f"{probe.stem}.frame.html")
    shown = "document.querySelector('iframe').contentDocument"
    copy = f"document.documentElement.dataset.told = {shown}?.documentElement?.dataset.told ?? ''"
    frame.write_text(
        f'<!doctype html><iframe src="{probe.as_uri()}" style="width:{width}px;height:1500px;border:0"></iframe>'
        f"<script>const waiting = setInterval(() => {{ {copy}; }}, 100);</script>",
        encoding="utf-8",
    )
    return frame
