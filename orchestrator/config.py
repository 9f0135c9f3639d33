"""Owns composition: command line and conf/ → one `Sweep`; the only module that knows Hydra and OmegaConf.

Does not own the meaning of a grid (grid) or the wording of an error (complaints).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jobs.errors import BadInput
from jobs.spec import tokens_of
from orchestrator.complaints import no_such_choice, no_such_field, type_at, worded
from orchestrator.grid import Grid, Point
from orchestrator.settings import PARTS, Cluster, Limits, Mode, Run, Search, SweepConfig
from storage.limits import limit_mistake, limit_names

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
CONFIG = "config"
ENDLESS = re.compile(r"(?<![\w.])-?\d{300,}(?![\w.])")  # a whole number that is too large for a float
FREE_FORM = (
    r"axes|thresholds|engine\.(?:args|runtime_env)|draft\.args|workload\.(?:columns|template_args)|cluster\.(?:marks|pools)"
)
FREE = re.compile(rf"\+{{0,2}}((?:{FREE_FORM})(?:[.=].*))", re.DOTALL)
READ = re.compile(r"\$\{([\w.]+)\}")  # an interpolation and the key that it reads
NESTED = re.compile(r"(axes)\.([\w.]+)=(.*)|(cluster\.pools)\.([\w.-]+)=(.*)", re.DOTALL)

ConfigStore.instance().store("schema", SweepConfig)


@dataclass(frozen=True)
class Sweep:
    """A composed sweep: what surrounds the cells, and what `grid.expand` makes them of. `text`: all of it as YAML."""

    mode: Mode
    run: Run
    cluster: Cluster
    limits: Limits
    points: tuple[Point, ...]
    grid: Grid
    text: str
    search: Search = field(default_factory=Search)


def compose(argv: Sequence[str]) -> Sweep | None:
    """The sweep that a command line asks for; None when it only asked to be shown something (--help, --cfg job).

    Raises `BadInput`, one line, for every mistake in the command line or in conf/.
    """
    _refuse_multirun(argv)
    _refuse_endless_numbers(argv)
    received: list[Sweep | BadInput] = []

    def receive(config: DictConfig) -> None:  # runs inside Hydra, which prints its own words over what is raised here
        try:
            received.append(_sweep(config))
        except (HydraException, OmegaConfBaseException) as error:
            received.append(BadInput(worded(error)))
        except BadInput as error:
            received.append(error)

    try:
        _run_hydra(receive, [_freed(item) for item in argv])
    except (HydraException, OmegaConfBaseException) as error:
        raise BadInput(worded(error)) from error
    if received and isinstance(received[0], BadInput):
        raise received[0]
    return received[0] if received else None  # type: ignore[return-value]


def _run_hydra(task: Any, argv: Sequence[str]) -> None:
    """Hydra reads `sys.argv`, and shows causes only where its own summary is turned off."""
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["sweep.py", *argv], "1"
    try:
        hydra.main(config_path=str(CONF), config_name=CONFIG, version_base="1.3")(task)()
    finally:
        sys.argv = before[0]
        os.environ.pop("HYDRA_FULL_ERROR")
        if before[1] is not None:
            os.environ["HYDRA_FULL_ERROR"] = before[1]


def _refuse_multirun(argv: Sequence[str]) -> None:
    if {"-m", "--multirun"} & set(argv) or any(item.startswith("hydra.mode=") for item in argv):
        raise BadInput(
            "a sweep is one run: got --multirun. Give the values as axes, 'axes.draft=[none,ngram]', or a grid, +grid=NAME."
        )


def _freed(override: str) -> str:
    """Hydra adds a key to a free-form mapping only with `++`, would nest a dotted axis, and adds no pool: as it wants it."""
    if not (found := FREE.fullmatch(override)):
        return override
    free = found[1]
    if nested := NESTED.fullmatch(free):
        mapping, name, value = (part for part in nested.groups() if part is not None)
        steps = [name] if mapping == "axes" else name.split(".")
        return f"++{mapping}={'{' + ':{'.join(steps)}:{value}{'}' * len(steps)}"
    return f"++{free}"


def _sweep(config: DictConfig) -> Sweep:
    plain = _plain(config)
    chosen = HydraConfig.get().runtime.choices
    axes = _axes(plain["axes"])
    _refuse_read_axes(config, axes)
    _refuse_idle_overrides(axes)
    settings = OmegaConf.merge(
        OmegaConf.structured(SweepConfig),
        {key: plain[key] for key in ("mode", "run", "cluster", "limits", "search", "thresholds")},
    )
    found: Any = OmegaConf.to_object(settings)
    _refuse_limits_below_one(found.limits)
    _refuse_bad_thresholds(found.thresholds)
    found.run.name = found.run.name or chosen.get("grid") or "sweep"
    return Sweep(
        mode=found.mode,
        run=found.run,
        cluster=found.cluster,
        limits=found.limits,
        points=tuple(_points(plain, chosen, axes)),
        grid=_grid(plain, axes),
        text=OmegaConf.to_yaml(config, resolve=True),
        search=found.search,
    )


def _grid(plain: Mapping[str, Any], axes: Mapping[str, list[Any]]) -> Grid:
    if plain["baseline"] not in ("none", ""):
        raise BadInput(
            f'`baseline` must be none (pair with no speculation) or "" (add no baselines): got {plain["baseline"]!r}.'
        )
    return Grid(
        fields={key: values for key, values in axes.items() if "." in key},
        exclude=[_rule(rule) for rule in plain["exclude"]],
        repeats=plain["repeats"],
        baseline=bool(plain["baseline"]),
        folders=[key for key in axes if "." not in key],
    )


def _points(plain: Mapping[str, Any], chosen: Mapping[str, str], axes: Mapping[str, list[Any]]) -> list[Point]:
    """One composition per combination of folders: the slow part, about 85 ms each."""
    folders = {key: values for key, values in axes.items() if "." not in key}
    base = {name: str(chosen.get(name)) for name in PARTS}
    if not folders:
        return [Point(base, {name: plain[name] for name in PARTS})]
    return [_point(base, dict(zip(folders, choices, strict=True)), axes) for choices in product(*folders.values())]


def _point(base: Mapping[str, str], choices: Mapping[str, str], axes: Mapping[str, list[Any]]) -> Point:
    overrides = [*HydraConfig.get().overrides.task, *(f"{folder}={choice}" for folder, choice in choices.items())]
    config = hydra.compose(CONFIG, overrides=overrides)
    _refuse_read_axes(config, axes)
    plain = _plain(config)
    return Point({**base, **choices}, {name: plain[name] for name in PARTS})


def _plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain data; `BadInput` for a key that `+` smuggled past the schema."""
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    for key, value in plain.items():
        _refuse_unknown(key)
        if isinstance(value, dict) and key != "axes":
            for name in value:
                _refuse_unknown(f"{key}.{name}")
    return {str(key): value for key, value in plain.items()}


def _refuse_unknown(key: str) -> None:
    if type_at(key) is None:
        raise BadInput(no_such_field(key))


def _refuse_read_axes(config: DictConfig, axes: Mapping[str, Any]) -> None:
    """Interpolations are read at composition, fields of an axis are set afterwards: the reader would keep the old value."""
    read = READ.findall(str(OmegaConf.to_container(config, resolve=False)))
    for key in axes:
        if "." in key and any(f"{key}.".startswith(f"{name}.") for name in read):
            raise BadInput(
                f"`{key}` must not be an axis here: another field reads it as ${{{key}}}, and would not follow. "
                "Sweep over files of conf/ instead, as axes.model=[...], or set the other field yourself."
            )


def _axes(plain: Mapping[str, Any]) -> dict[str, list[Any]]:
    flat = {}
    for key, values in plain.items():
        nested = {f"{key}.{name}": item for name, item in values.items()} if isinstance(values, dict) else {key: values}
        flat.update({name: _values(name, item) for name, item in nested.items()})
    return flat


def _values(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        example = "1, 3, 5" if isinstance(values, list) else values
        raise BadInput(f"`axes.{key}` must be a list of at least one value: got {values!r}. Write [{example}].")
    return [_value(key, item) for item in values]


def _value(key: str, value: Any) -> Any:
    """One value of an axis or of an exclude, as the schema types it."""
    section, _, name = key.partition(".")
    if section not in PARTS:
        raise BadInput(
            f"an axis or exclude must be of a part of a cell: got `{key}`. Parts: {', '.join(PARTS)}. Use one of them."
        )
    if not name:
        return _choice(section, value)
    _refuse_unknown(key)
    node = OmegaConf.create({section: OmegaConf.structured(PARTS[section])})
    OmegaConf.update(node, key, value, force_add=key.count(".") > 1)
    typed: Any = OmegaConf.to_container(node)
    for step in key.split("."):
        typed = typed[step]
    return tokens_of(typed) if key == "workload.isl" else typed


def _choice(folder: str, choice: Any) -> str:
    known = GlobalHydra.instance().config_loader().get_group_options(folder)
    if choice not in known:
        raise BadInput(no_such_choice(folder, choice, known))
    return str(choice)


def _rule(rule: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {
        key: [_value(key, item) for item in (value if isinstance(value, list) else [value])] for key, value in rule.items()
    }


def _refuse_endless_numbers(argv: Sequence[str]) -> None:
    for item in argv:
        if found := ENDLESS.search(item):
            key = item.lstrip("+").partition("=")[0][:80]
            raise BadInput(f"`{key}` must be a number that can be counted with: got one of {len(found[0])} digits.")


def _refuse_limits_below_one(limits: Limits) -> None:
    for name, value in vars(limits).items():
        if value < 1:
            raise BadInput(f"`limits.{name}` must be at least 1: got {value}.")


def _refuse_bad_thresholds(thresholds: Mapping[str, float]) -> None:
    for name, value in thresholds.items():
        if name not in limit_names():
            near = get_close_matches(name, limit_names(), n=1)
            hint = f"Did you mean {near[0]}?" if near else "Use one of them."
            raise BadInput(f"`thresholds.{name}` is no limit of a verdict. Limits: {', '.join(limit_names())}. {hint}")
        if wrong := limit_mistake(name, value):
            raise BadInput(f"`thresholds.{name}` {wrong}: got {value:g}.")


def _refuse_idle_overrides(axes: Mapping[str, Any]) -> None:
    """What Hydra would accept and the grid would not mean: a choice that an axis sets, and two files merged into one."""
    for override in HydraConfig.get().overrides.task:
        key, _, value = override.lstrip("+").partition("=")
        if key in axes:
            remedy = value if value.startswith("[") else f"[{value}]"
            raise BadInput(
                f"`{key}` is an axis here, so {override} would change nothing. Narrow the axis: 'axes.{key}={remedy}'."
            )
        if key == "grid" and value.startswith("["):
            raise BadInput(f"a sweep has one grid: got {value}. Run one after the other, or write one of your own.")
        if key in PARTS and value.startswith("["):
            raise BadInput(
                f"`{key}` takes one choice: got {value}. To sweep over several, make it an axis: 'axes.{key}={value}'."
            )
