"""Owns the tree of exceptions. Does not own what to do about them: `session` and `schedule` turn them into rows.

SpecSweepError                      storage/errors.py
├── BadInput                        the user's mistake: one line, exit code 2, nothing started
│   ├── BadRun                      a run folder that cannot be read or written
│   └── Unsupported                 a combination that the engine does not offer, refused at plan time
├── StorageFailed                   the disk or bucket refused a write
├── EngineFailed                    the engine, not the cell: the session ends
│   ├── EngineDidNotStart           it ended, or was not ready in time
│   ├── EngineDied                  it was ready, and its process is gone
│   ├── GpuTaken                    what an earlier session left still holds its GPU
│   ├── EngineHung                  its process lives and does not answer
│   └── WrongEngine                 something else answers on the port, or speculation is not on
├── RayDidNotStart                  on this machine, after some tries
└── CellFailed                      this cell only; the session goes on
    └── CellTimedOut                it ran longer than `load.cell_timeout_s`
"""

from __future__ import annotations

from storage.errors import BadInput, BadRun, SpecSweepError, StorageFailed

__all__ = [
    "BadInput",
    "BadRun",
    "CellFailed",
    "CellTimedOut",
    "EngineDidNotStart",
    "EngineDied",
    "EngineFailed",
    "EngineHung",
    "GpuTaken",
    "RayDidNotStart",
    "SpecSweepError",
    "StorageFailed",
    "Unsupported",
    "WrongEngine",
]


class Unsupported(BadInput):
    """The engine does not offer this combination; the text names the engines that do."""


class EngineFailed(SpecSweepError):
    """The engine failed. `log_tail` holds the last lines of its log ("" when there is none)."""

    def __init__(self, message: str, *, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail

    @property
    def text(self) -> str:
        return f"{self}\n{self.log_tail}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.log_tail))


class EngineDidNotStart(EngineFailed):
    """The engine ended before it was ready, or was not ready within `engine.start_timeout_s`."""


class EngineDied(EngineFailed):
    """The engine had been ready, and its process is gone."""


class EngineHung(EngineFailed):
    """The engine's process lives, and does not answer."""


class GpuTaken(EngineFailed):
    """A process of an earlier session still holds memory of a GPU that this one was given; the text has its pid."""


class WrongEngine(EngineFailed):
    """A stranger answers on the port, or the engine runs without the speculation that was asked for."""


class RayDidNotStart(SpecSweepError):
    """Ray did not start on this machine: it is overloaded, or out of something."""


class CellFailed(SpecSweepError):
    """This cell failed; the engine is well, and the session goes on."""


class CellTimedOut(CellFailed):
    """The cell ran longer than `load.cell_timeout_s`, or no request was answered within `load.request_timeout_s`."""


def _rebuild(kind: type[EngineFailed], message: str, log_tail: str) -> EngineFailed:
    return kind(message, log_tail=log_tail)
