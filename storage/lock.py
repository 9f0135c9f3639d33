"""Owns the right to write into a run: one process at a time. Does not own what is written.

In a file system the lock is the operating system's (`flock`): it goes with its process, however that ends. On NFS Linux
makes it a lock of the whole file at the server, which all machines see, unless it was mounted with locks of its own: that is
refused. The text in it says whose it is, for people; it is never trusted. In a bucket it is a claim (`storage.claim`).
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from pathlib import Path
from typing import IO, Protocol

from storage.claim import Claim
from storage.errors import BadRun, StorageFailed
from storage.places import BucketPath, Place

LOCK_FILE = ".lock"
_MOUNTS = Path("/proc/self/mountinfo")
_LOCAL_LOCKS = re.compile(r"\b(nolock|local_lock=(?:all|flock))\b")


class Lock(Protocol):
    """The right to write into a run, until it is released."""

    def require(self) -> None:
        """Raise `StorageFailed` when the right was lost."""

    def release(self) -> None: ...


def lock_run(folder: Place) -> Lock:
    """Take the right to write. Raises `BadRun` when another process has it."""
    return Claim(folder / LOCK_FILE, folder) if isinstance(folder, BucketPath) else RunLock(folder)


class RunLock:
    """Holds the lock of one run folder from construction to `release()`."""

    def __init__(self, folder: Path) -> None:
        """Raise `BadRun` when another process holds it."""
        self._path = path = folder / LOCK_FILE
        _refuse_local_locks(folder)
        self._file = _open(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read().strip() or "another process"
            self._file.close()
            raise BadRun(
                f"A run has one driver at a time: {folder} is in use by {owner}. "
                "Wait for it, stop it, or give this sweep another `run.name`."
            ) from None
        except OSError as error:
            self._file.close()
            raise BadRun(
                f"A run must be on a file system with locks: got {error.strerror} at {path}. Choose another folder."
            ) from error
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def require(self) -> None:
        """The operating system keeps it, until somebody removes its file: then another driver may have one of that name."""
        try:
            is_ours = os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except OSError:
            is_ours = False
        if not is_ours:
            raise StorageFailed(
                f"A run's lock must stay where it is: {self._path} was removed, so that another driver may write here too. "
                "What was committed is whole: run the same command again."
            )

    def release(self) -> None:
        self._file.close()


def _open(path: Path) -> IO[str]:
    try:
        return path.open("a+")
    except OSError as error:
        raise BadRun(f"A run's folder must be writable: got {error.strerror} at {path}. Choose another folder.") from error


def _refuse_local_locks(folder: Path) -> None:
    """On NFS, a lock that only this machine sees keeps no driver of another machine out."""
    kind, options = mount_of(folder, _MOUNTS.read_text() if _MOUNTS.exists() else "")
    found = _LOCAL_LOCKS.search(options) if kind.startswith("nfs") else None
    if found:
        raise BadRun(
            f"A run on NFS needs locks that all machines see: {folder} is mounted with {found[0]}. "
            "Mount it without that, or choose another folder."
        )


def mount_of(folder: Path, mounts: str) -> tuple[str, str]:
    """The kind of the file system that holds the folder, and its options, of the text of a `mountinfo`; "" for none."""
    best = ("", "", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if folder.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            kind, _, options = after.split(" ", 2)
            best = (point, kind, options)
    return best[1:]
