"""Owns how adapters say what they refuse: rules as pairs, and the refusal of a method with the engines that offer it.

Does not own any engine's rules. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache

from jobs.engines.base import Engine
from jobs.errors import BadInput, Unsupported
from jobs.identity import default_of
from jobs.spec import Deployment
from jobs.spec import Engine as EngineFields

Rule = tuple[bool, str]
"""Does it hold, and what is wrong if not."""

MOST_NODES = 1000  # that are named to whoever has to choose another number


def enforce(offers: Iterable[Rule], rules: Iterable[Rule]) -> None:
    """`Unsupported` for the first of `offers` that does not hold (another engine may help), then `BadInput` for `rules`."""
    for kind, pairs in ((Unsupported, offers), (BadInput, rules)):
        for holds, wrong in pairs:
            if not holds:
                raise kind(wrong)


def offers_method(engine: Engine, method: str, version: str = "") -> Rule:
    """Whether this engine has this method, in this version of it ("" = in the newest that is known)."""
    offer = engine.methods[method]
    why = offer.refusal
    if not why and offer.until and version and version_of(version) >= version_of(offer.until):
        why = f"version {version} has it no more, it went with {offer.until}"
    others = ", ".join(engines_that_offer(method)) or "no engine"
    return not why, f"`draft.method` must be one that {engine.name} offers: got {method!r} ({why}). Offered by: {others}."


def check_nodes(engine: Engine, deployment: Deployment) -> None:
    """Raise `Unsupported` where this engine is not started over several nodes, `BadInput` where they are not even."""
    enforce([nodes_offered(engine, deployment)], [nodes_even(deployment.engine)])


def nodes_offered(engine: Engine, deployment: Deployment) -> Rule:
    nodes, why = deployment.engine.nodes, engine.over_nodes.refusal
    others = ", ".join(engines_over_nodes())
    return (
        nodes == 1 or not why,
        f"`engine.nodes` must be 1 for {engine.name}, which is not started over several nodes: {why}. Got {nodes}. "
        f"Over several nodes: {others}.",
    )


def nodes_even(engine: EngineFields) -> Rule:
    nodes, devices = engine.nodes, engine.devices
    even = ", ".join(str(n) for n in range(1, min(devices, MOST_NODES) + 1) if devices % n == 0)
    return (
        devices % nodes == 0,
        f"`engine.nodes` must divide tp x pp x dp = {devices}, as each node has as many: got {nodes}. Use one of {even}.",
    )


def whole_on_nodes(engine: EngineFields, part: str, size: int) -> Rule:
    """That each of these parts of an engine fills whole nodes, or a node holds whole ones: `size` GPUs a part."""
    local = max(1, engine.devices // engine.nodes)
    return (
        size % local == 0 or local % size == 0,
        f"`engine.nodes` must cut no {part} unevenly: got {engine.nodes} nodes of {local} GPUs, and {size} GPUs a {part}.",
    )


@cache
def engines_over_nodes() -> tuple[str, ...]:
    """The names of the engines that are started over several nodes; the simulated one never counts."""
    from jobs.engines import ENGINES, engine_named  # the registry imports adapters, and those import this

    return tuple(name for name in ENGINES if name != "simulated" and not engine_named(name).over_nodes.refusal)


@cache
def engines_that_offer(method: str) -> tuple[str, ...]:
    """The names of the engines that have this method; the simulated one never counts."""
    from jobs.engines import ENGINES, engine_named  # the registry imports adapters, and those import this

    return tuple(name for name in ENGINES if name != "simulated" and not engine_named(name).methods[method].refusal)


def lacks(engine: str, section: str, part: object, names: Iterable[str]) -> Iterator[Rule]:
    """That these fields of a section have their defaults, because this engine has nothing of the kind."""
    for item in fields(part):  # type: ignore[arg-type]  # a dataclass
        if item.name in names:
            value, default = getattr(part, item.name), default_of(item)
            wrong = (
                f"`{section}.{item.name}` must be {default!r} for {engine}, which has nothing of the kind: got {value!r}."
            )
            yield value == default, wrong


def one_of(name: str, value: object, known: tuple[str, ...] | Mapping[str, object]) -> Rule:
    return value in known, f"`{name}` must be known: got {value!r}. Known: {', '.join(known)}. Use one of them."


def at_least(name: str, value: int, least: int, why: str = "") -> Rule:
    return value >= least, f"`{name}` must be at least {least}{why}: got {value}."


def version_of(text: str) -> tuple[int, ...]:
    """`0.32.0+cpu` → (0, 32, 0): as far as it is numbers."""
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
