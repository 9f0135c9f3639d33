"""Owns the right to write into a run: one process at a time. Does not own what is written.

The lock is the operating system's (`flock`): it goes with its process, however that ends. The text in it says whose it is,
for people; it is never trusted.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from storage.errors import BadRun

LOCK_FILE = ".lock"


class RunLock:
    """Holds the lock of one run folder from construction to `release()`."""

    def __init__(self, folder: Path) -> None:
        """Raise `BadRun` when another process holds it."""
        path = folder / LOCK_FILE
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

    def release(self) -> None:
        self._file.close()


def _open(path: Path) -> IO[str]:
    try:
        return path.open("a+")
    except OSError as error:
        raise BadRun(f"A run's folder must be writable: got {error.strerror} at {path}. Choose another folder.") from error
