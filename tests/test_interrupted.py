"""Ctrl-C while a command is still imported is exit code 130 and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.command import run_command
from storage.query import sql_mistakes

ROOT = Path(__file__).resolve().parent.parent
PRESS = """
import os, signal, sys, weakref

def press(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Passing:
    pass

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {late!r} and {in_a_callback}:
            passing = Passing()
            self.kept = weakref.ref(passing, press)
        elif name == {late!r}:
            press()

sys.meta_path.insert(0, Press())
"""
COMMANDS = {
    "sweep.py": "orchestrator.reconcile",
    "-m storage.report": "duckdb",
    "-m storage.query": "duckdb",
    "-m storage.export": "pyarrow.parquet",
    "-m storage.serve": "uvicorn",
    "-m storage.compact": "pyarrow",
    "-m jobs.submit": "jobs.submit.slurm",
    "-m jobs.submit.all_nodes": "pyarrow",
    "-m jobs.workloads": "jobs.workloads.stratify",
    "-m jobs.workloads.select": "numpy",
    "-m jobs.workloads.prepare": "rich.console",
}
"""Command → a module that it imports late."""


@pytest.mark.parametrize("in_a_callback", [False, True], ids=["raised", "in a callback"])
@pytest.mark.parametrize(("command", "late"), COMMANDS.items(), ids=COMMANDS)
def test_ctrl_c_while_a_command_is_imported_is_no_traceback(
    command: str, late: str, in_a_callback: bool, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRESS.format(late=late, in_a_callback=in_a_callback))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *command.split(), "--help"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


RUN = """
import sweep, sys
from orchestrator import reconcile
from storage.command import run_command
from storage.interrupted import end_without_a_word

class Press:
    def __del__(self):
        raise KeyboardInterrupt

def act(*_):
    try:
        Press()
        return 0
    finally:
        print("put away")

end_without_a_word()
reconcile.reconcile = act
sys.exit({command})
"""


@pytest.mark.parametrize("command", ["run_command(act)", "sweep.main(['+grid=quickstart'])"])
def test_ctrl_c_where_nothing_can_be_raised_skips_nothing_that_must_be_put_away(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(command=command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "put away\n")


def test_a_command_leaves_the_hook_of_another_alone() -> None:
    before = sys.unraisablehook
    assert run_command(lambda: 0) == 0
    assert sys.unraisablehook is before


def fail(error: Exception) -> int:
    raise error


def test_what_duckdb_makes_of_ctrl_c_is_an_interruption_again() -> None:
    assert run_command(lambda: fail(RuntimeError("Query interrupted"))) == 130  # its text, as of DuckDB 2.0
    with pytest.raises(KeyboardInterrupt), sql_mistakes():
        fail(RuntimeError("Query interrupted"))
    with pytest.raises(RuntimeError, match="another"):
        run_command(lambda: fail(RuntimeError("another")))


def test_every_command_is_tried() -> None:
    written = [path.relative_to(ROOT).with_suffix("") for top in ("jobs", "storage") for path in (ROOT / top).rglob("*.py")]
    run = [path for path in written if "run_command(" in (ROOT / path).with_suffix(".py").read_text()]
    commands = {f"-m {'.'.join(path.parts).removesuffix('.__main__')}" for path in run} - {"-m storage.command"}
    assert commands | {"sweep.py"} == {*COMMANDS}
