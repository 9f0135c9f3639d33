"""Owns when requests arrive: pure functions from a load to send offsets. Does not own sending, or what a slot is.

Every open loop is the same two steps: gaps of mean 1 (all equal, exponential, or gamma), and a rate over time through which
they are stretched. So each kind of gap works with each profile of rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from jobs.errors import BadInput
from jobs.provenance import local_path
from jobs.spec import Load

Floats = npt.NDArray[np.float64]

KINDS = ("closed", "constant", "poisson", "gamma", "replay")


def check(load: Load) -> None:
    """Raise `BadInput` for a load that says nothing sensible."""
    if load.kind not in KINDS:
        raise BadInput(f"`load.kind` must be a known kind: got {load.kind!r}. Known: {', '.join(KINDS)}. Use one of them.")
    if load.kind == "closed" and load.concurrency < 1:
        raise BadInput(f"`load.concurrency` must be at least 1 in a closed loop: got {load.concurrency}. Use 1 or more.")
    if load.kind in ("constant", "poisson", "gamma"):
        check_rates(load)


def check_rates(load: Load) -> None:
    """Raise `BadInput` for an open loop without rates, or with impossible ones."""
    rates = list(load.rates) or [load.rate]
    if min(rates) < 0 or rates[-1] <= 0:
        raise BadInput(
            f"`load.rate` must be above 0 requests a second, and so must the last of `load.rates`: got {rates}. Raise it."
        )
    if load.rates and load.rate_step_s <= 0:
        raise BadInput(
            f"`load.rate_step_s` must be above 0 with `load.rates`: got {load.rate_step_s}. Give each rate its seconds."
        )
    if load.kind == "gamma" and load.burstiness <= 0:
        raise BadInput(f"`load.burstiness` must be above 0: got {load.burstiness}. 1 is Poisson, less comes in bursts.")


def check_recorded(load: Load, recorded_s: Sequence[float | None]) -> None:
    """Raise `BadInput` for a replay without times: neither enough in a file, nor those at which the prompts came."""
    if load.kind == "replay" and load.replay:
        replayed_ns(recorded_offsets_s(load.replay), len(recorded_s))
    elif load.kind == "replay" and None in recorded_s:
        raise BadInput(
            "`load.replay` must name a file with one send offset in seconds a line, unless the prompts have times of their "
            "own: got nothing. Name one, or use workload=trace."
        )


def send_offsets_ns(load: Load, count: int, seed: int, recorded_s: Sequence[float | None] = ()) -> list[int] | None:
    """When each of `count` conversations is to be sent, in nanoseconds from the start, rising; None in a closed loop.

    `recorded_s`: when they came, in a trace. A replay without a file is at these times; what has none, to warm up,
    is sent at once.
    """
    check(load)
    if load.kind == "closed":
        return None
    if load.kind == "replay":
        own = [offset or 0.0 for offset in recorded_s]
        return replayed_ns(recorded_offsets_s(load.replay) if load.replay else own, count)
    offsets_s = stretched(np.cumsum(unit_gaps(load, count, seed)), load)
    return [int(offset) for offset in np.rint(offsets_s * 1e9)]


def unit_gaps(load: Load, count: int, seed: int) -> Floats:
    """Gaps of mean 1 between arrivals: equal ones, or drawn ones with a coefficient of variation of 1/√burstiness."""
    if load.kind == "constant":
        return np.ones(count)
    shape = load.burstiness if load.kind == "gamma" else 1.0
    return np.random.default_rng(seed).gamma(shape, 1.0 / shape, count)


def stretched(expected: Floats, load: Load) -> Floats:
    """The seconds at which the expected number of arrivals reaches `expected`, under the load's rates over time.

    Each rate holds for `rate_step_s`, or, with `is_ramp`, rises or falls evenly to the next one; the last holds for ever.
    """
    if not load.rates:
        return expected / load.rate
    step_s, rates = load.rate_step_s, list(load.rates)
    ends = [*rates[1:], rates[-1]] if load.is_ramp else rates
    counts = [0.0, *accumulate((first + last) / 2 * step_s for first, last in zip(rates, ends, strict=True))]
    pieces = np.minimum(np.searchsorted(counts, expected, side="right") - 1, len(rates) - 1)
    start, slope = np.array(rates)[pieces], (np.array(ends)[pieces] - np.array(rates)[pieces]) / step_s
    wanted = expected - np.array(counts)[pieces]
    # wanted = start·t + slope·t²/2, solved in the form that stays exact when the slope is 0
    since: Floats = 2 * wanted / (start + np.sqrt(np.maximum(start * start + 2 * slope * wanted, 0.0)))
    return pieces * step_s + since


@lru_cache(maxsize=8)  # the cells of a grid replay a few files; a plan asks for each cell, and a file may be long
def recorded_offsets_s(replay: str) -> tuple[float, ...]:
    """Recorded arrival times, one a line, in seconds; `BadInput` when that is not what the file holds."""
    path = local_path(replay)
    try:
        offsets_s = tuple(float(line) for line in path.read_text(encoding="utf-8").split())
        if not np.isfinite(offsets_s).all():
            raise ValueError("nan and inf are no times")
    except (OSError, ValueError) as error:
        raise BadInput(
            f"`load.replay` must name a file with one send offset in seconds a line: got {path} ({error})."
        ) from None
    return offsets_s


def replayed_ns(offsets_s: Sequence[float], count: int) -> list[int]:
    """The first `count` recorded arrivals, counted from the first of them; `BadInput` when there are fewer."""
    if len(offsets_s) < count:
        raise BadInput(
            f"`load.replay` must hold an arrival for every conversation: got {len(offsets_s)} for {count}. "
            "Lower `workload.limit`, or record more."
        )
    rising = sorted(offsets_s)[:count]
    return [round((offset - rising[0]) * 1e9) for offset in rising]
