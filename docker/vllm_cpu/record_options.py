"""Owns the list of a vLLM's own options, for `jobs/engines/known/`: run it with the interpreter of that vLLM.

Does not own which of them SpecSweep sets. `python record_options.py FOLDER` writes FOLDER/vllm-VERSION.json: the kind and
the choices of every flag of the server, and the fields of `--speculative-config`.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import vllm
from vllm.config import SpeculativeConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

INTERNAL = ("target_", "draft_model_config", "draft_parallel_config")  # fields that vLLM fills in by itself


def kind_of(action: argparse.Action) -> str:
    """How its value is written: `switch` (--x, --no-x), `flag` (--x), `many` (--x a b), `value` (--x a, or JSON)."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    if action.nargs == 0:
        return "flag"
    return "many" if action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction) else "value"


def main() -> None:
    flags = {}
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        if f"--{action.dest.replace('_', '-')}" in action.option_strings and action.dest != "help":
            choices = list(action.choices or ())
            flags[action.dest] = {"kind": kind_of(action), **({"choices": choices} if choices else {})}
    fields = [item.name for item in dataclasses.fields(SpeculativeConfig) if not item.name.startswith(INTERNAL)]
    version = vllm.__version__.partition("+")[0]
    table = {"version": version, "flags": flags, "speculative": fields}
    target = Path(sys.argv[1]) / f"vllm-{version}.json"
    target.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
