"""Owns the right to write into a run of a bucket: one process at a time. Does not own what is written.

A bucket has no locks, and Arrow's clients no conditional PUT. But a PUT is seen by every listing that begins after it (S3
since 2020, GCS): each driver puts a claim under a name of its own, then lists all claims, and goes on only if it finds no
other. Of two drivers at least one sees the other, so never do both go on (both may be refused). A claim is renewed as
long as its driver lives. One that was not renewed for `STALE_S` by the bucket's own clock, or whose process is known to be
gone, is taken over.

What it cannot do: a driver that was stopped for longer than that, and is let go between looking at its claim and the end of
the one PUT it was about to send, still sends that one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any

from storage.errors import BadRun, StorageFailed
from storage.places import BucketPath

RENEW_S, STALE_S = 15.0, 90.0
_held: set[str] = set()
"""Names of the claims of this process."""


class Claim:
    """Holds the right from construction to `release()`; a thread renews it."""

    def __init__(self, claims: BucketPath, folder: BucketPath) -> None:
        """Raise `BadRun` when another process has it, or when the bucket cannot be written."""
        self._folder, self._claims = folder, claims
        self._mine = claims / f"{secrets.token_hex(8)}.json"
        _held.add(self._mine.name)
        self._ended = threading.Event()
        self._lost = ""
        self._renewed_at = time.monotonic()
        try:
            self._renew()
            self._refuse_others()
        except BadRun:
            _held.discard(self._mine.name)
            raise
        except OSError as error:
            _held.discard(self._mine.name)
            raise BadRun(
                f"A run's folder must be writable: got {error.strerror} at {folder}. Choose another folder."
            ) from error
        self._thread = threading.Thread(target=self._keep, name="claim", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise `StorageFailed` when the claim was taken over, or could not be renewed so long that it may have been."""
        self._look_back()
        if self._lost:
            raise StorageFailed(
                f"A run has one driver at a time: the claim on {self._folder} was lost ({self._lost}). "
                "What was committed before is whole. Run the same command again."
            )

    def _look_back(self) -> None:
        """A claim that was silent for long is given up before anybody may take it over, and never renewed again."""
        silent_s = time.monotonic() - self._renewed_at
        if not self._lost and silent_s > STALE_S - 2 * RENEW_S:
            self._lost = f"it could not be renewed for {silent_s:.0f} s"

    def release(self) -> None:
        """Let others write. A claim that cannot be removed now is stale soon."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            _held.discard(self._mine.name)
            with contextlib.suppress(OSError):
                self._mine.unlink(missing_ok=True)

    def _renew(self) -> None:
        begun = time.monotonic()
        self._mine.write_bytes(json.dumps({"owner": _owner(), "machine": _machine(), "process": os.getpid()}).encode())
        self._look_back()  # this PUT may have been that slow
        self._renewed_at = begun

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_S) and not self._lost:
            with contextlib.suppress(OSError):  # for as long as `_look_back` allows
                self._look_back()
                if not self._lost and not self._mine.exists():
                    self._lost = "another driver took it over"
                if not self._lost:
                    self._renew()

    def _refuse_others(self) -> None:
        listing = self._claims.listing()
        now_ns = listing[self._mine.name].mtime_ns  # by the bucket's clock
        for name, facts in listing.items():
            other = self._claims / name
            if name == self._mine.name:
                continue
            age_s = (now_ns - facts.mtime_ns) / 1e9
            told = _read(other)
            if age_s <= STALE_S and not _is_gone(told, name):
                self._mine.unlink(missing_ok=True)
                raise BadRun(
                    f"A run has one driver at a time: {self._folder} is in use by {told.get('owner', 'another process')}, "
                    f"last seen {max(age_s, 0):.0f} s ago. Stop it, wait {STALE_S:.0f} s if it is dead, "
                    "or give this sweep another `run.name`."
                )
            other.unlink(missing_ok=True)


def _read(claim: BucketPath) -> dict[str, Any]:
    """What a claim says of its owner; nothing when it is gone or torn."""
    try:
        told = json.loads(claim.read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _owner() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _machine() -> str:
    """The same for processes that can see each other, and for no others: host, its boot, and its table of processes."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _is_gone(told: dict[str, Any], name: str) -> bool:
    """Whether the owner was a process of this machine and is no more, or this one, which has released it."""
    process = told.get("process")
    if not _machine() or told.get("machine") != _machine() or not isinstance(process, int):
        return False
    if process == os.getpid():
        return name not in _held
    return not Path(f"/proc/{process}").exists()
