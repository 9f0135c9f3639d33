"""The lifeline: what it reaps when its owner is killed, and what it leaves alone. Real processes, small ones."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jobs.engines.lifeline import PROJECT, WATCHED, Lifeline, alive, end_tree, marked
from jobs.errors import SpecSweepError

VARIABLE = "SPECSWEEP_TEST"

SLEEPER = "import time; time.sleep(300)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture
def marker() -> Iterator[tuple[str, str]]:
    """A marker of its own; whatever carries it afterwards is ended, so that a failing test leaves nothing either."""
    marker = (VARIABLE, secrets.token_hex(8))
    yield marker
    end_tree(marker, grace_s=0)


def spawn(code: str, marker: tuple[str, str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), marker[0]: marker[1]}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with process.stdout as out:
        return out.readline().strip()


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def supervisors(marker: tuple[str, str]) -> list[psutil.Process]:
    """The lifeline processes of this marker."""
    return [process for process in alive(psutil.process_iter()) if _watched(process) == "=".join(marker)]


def _watched(process: psutil.Process) -> str:
    try:
        return process.environ().get(WATCHED, "")
    except psutil.Error:
        return ""


OWNER = """
    import subprocess, sys, time
    from pathlib import Path
    from jobs.engines.lifeline import Lifeline
    marker, scratch, code = ({variable!r}, {value!r}), Path({scratch!r}), {code!r}
    scratch.mkdir()
    line = Lifeline(marker, [scratch], grace_s=0.5)
    child = subprocess.Popen([sys.executable, "-c", code], env={{marker[0]: marker[1]}}, stdout=subprocess.PIPE)
    child.stdout.readline()
    print("ready", flush=True)
    {then}
"""


def start_owner(marker: tuple[str, str], scratch: Path, code: str, then: str = "time.sleep(300)") -> subprocess.Popen[str]:
    """A process that holds a lifeline and a marked tree; it does not carry the marker itself."""
    text = textwrap.dedent(OWNER).format(variable=marker[0], value=marker[1], scratch=str(scratch), code=code, then=then)
    owner = subprocess.Popen(
        [sys.executable, "-c", text],
        env={"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert first_line(owner) == "ready"
    return owner


def test_a_killed_owner_takes_its_tree_and_its_folder_along(marker: tuple[str, str], tmp_path: Path) -> None:
    """The tree has a grandchild in a session of its own that ignores TERM."""
    scratch = tmp_path / "scratch"
    owner = start_owner(marker, scratch, PARENT)
    assert len(marked(marker)) == 2
    assert len(supervisors(marker)) == 1
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert wait_for(lambda: not marked(marker))
    assert wait_for(lambda: not scratch.exists())
    assert wait_for(lambda: not supervisors(marker))


def test_the_lifeline_survives_the_kill_of_its_owners_whole_group(marker: tuple[str, str], tmp_path: Path) -> None:
    """As Ray ends a worker: its group and its direct children."""
    owner = start_owner(marker, tmp_path / "scratch", PARENT)
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    assert wait_for(lambda: not marked(marker))


def test_an_owner_that_ends_without_a_goodbye_counts_as_dead(marker: tuple[str, str], tmp_path: Path) -> None:
    owner = start_owner(marker, tmp_path / "scratch", PARENT, then="sys.exit(0)")
    owner.wait(timeout=10)
    assert wait_for(lambda: not marked(marker))


def test_an_owner_that_says_goodbye_leaves_everything_as_it_is(marker: tuple[str, str], tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    start_owner(marker, scratch, PARENT, then="line.close(); line.close()").wait(timeout=10)
    assert wait_for(lambda: not supervisors(marker))
    assert len(marked(marker)) == 2
    assert scratch.exists()


def test_a_child_of_the_owner_does_not_hold_the_line(marker: tuple[str, str], tmp_path: Path) -> None:
    """The owner's unmarked child outlives it, even one that inherits what it may: the pipe still ends with the owner."""
    then = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(6)"], close_fds=False); time.sleep(300)'
    owner = start_owner(marker, tmp_path / "scratch", PARENT, then=then)
    time.sleep(0.3)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert wait_for(lambda: not marked(marker), limit_s=5.0)


def test_the_lifeline_ignores_the_signals_of_a_shutdown(marker: tuple[str, str]) -> None:
    with Lifeline(marker):
        (supervisor,) = supervisors(marker)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            supervisor.send_signal(number)
        time.sleep(0.2)
        assert supervisors(marker) == [supervisor]
    assert wait_for(lambda: not supervisors(marker))


def test_the_lifeline_does_not_carry_the_marker_of_an_owner(
    marker: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that marks its own environment must not have the lifelines of its sessions reaped with it."""
    monkeypatch.setenv(*marker)
    with Lifeline(("SPECSWEEP_OTHER", marker[1])):
        assert not marked(marker)


def test_a_lifeline_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(SpecSweepError, match=f"the lifeline of {VARIABLE} must start: it ended with 9"):
        Lifeline((VARIABLE, "x"))


def test_the_end_of_a_tree_reaches_orphans_in_other_sessions(marker: tuple[str, str]) -> None:
    parent = spawn(PARENT, marker)
    grandchild = psutil.Process(int(first_line(parent)))
    parent.kill()
    parent.wait()
    assert grandchild in marked(marker)
    assert end_tree(marker, grace_s=0.3)
    assert not alive([grandchild])


def test_the_end_of_a_tree_reaches_unmarked_descendants(marker: tuple[str, str]) -> None:
    """A child that cleared its environment outlives its marked parent's TERM, and is ended all the same."""
    clears = PARENT.replace("start_new_session=True", "start_new_session=True, env={}")
    parent = spawn(clears, marker)
    grandchild = psutil.Process(int(first_line(parent)))
    assert end_tree(marker, grace_s=0.3)
    assert not alive([grandchild])
    parent.wait()


def test_who_honours_a_term_is_not_killed(marker: tuple[str, str], tmp_path: Path) -> None:
    note = tmp_path / "note"
    code = f"""
import signal, sys, time, pathlib
def leave(*_):
    time.sleep(0.3)
    pathlib.Path({str(note)!r}).write_text("left in order")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(300)
"""
    process = spawn(code, marker)
    assert first_line(process) == "ready"
    assert end_tree(marker, grace_s=10)
    assert note.read_text() == "left in order"
    process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="the state is Linux's")
def test_a_zombie_with_threads_left_still_runs(marker: tuple[str, str]) -> None:
    """As an engine whose main thread has ended while a driver's thread still frees the GPU."""
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(300,)).start(); "
    process = spawn(code + "print('ready', flush=True); ctypes.CDLL(None).pthread_exit(None)", marker)
    assert first_line(process) == "ready"
    half_dead = psutil.Process(process.pid)
    assert wait_for(lambda: half_dead.status() == psutil.STATUS_ZOMBIE)
    assert alive([half_dead]) == {half_dead}
    assert end_tree(marker, grace_s=0, roots=[half_dead])
    assert wait_for(lambda: process.poll() is not None)


def test_another_value_of_the_marker_is_left_alone(marker: tuple[str, str]) -> None:
    process = spawn(SLEEPER, marker)
    assert end_tree((marker[0], "another"), grace_s=0)
    assert process.poll() is None
    end_tree(marker, grace_s=5)
    first_line(process)
    process.wait()
