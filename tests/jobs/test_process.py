"""The owner of an engine's process: environment, start, readiness, log, end. The engines here are scripts of a few lines."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jobs.engines.base import Endpoint, Launch
from jobs.engines.lifeline import PROJECT, end_tree, marked
from jobs.engines.process import MARKER, TAIL_LINES, EngineProcess, ending, engine_environment, free_port
from jobs.errors import EngineDidNotStart, StorageFailed

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
WITH_GRANDCHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
{SERVER}"""


class Place:
    """Where one test starts engines; afterwards nothing that carries its nonce is left."""

    def __init__(self, folder: Path) -> None:
        self.nonce = secrets.token_hex(8)
        self.log = folder / "logs" / "engine.log"
        self.scratch = folder / "scratch"
        self.endpoint = Endpoint("127.0.0.1", free_port(), self.nonce)

    def start(self, code: str, **env: str) -> EngineProcess:
        launch = Launch((sys.executable, "-c", code.replace("{port}", str(self.endpoint.port))), env)
        return EngineProcess.start(launch, self.log, self.nonce, self.scratch)

    def tree(self) -> set[psutil.Process]:
        return marked((MARKER, self.nonce))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    end_tree((MARKER, place.nonce), grace_s=0)


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_clean_life(place: Place) -> None:
    process = place.start(SERVER)
    ready_s = process.wait_ready(place.endpoint, "/health", 20.0)
    assert 0 < ready_s < 20
    assert process.is_alive()
    assert place.scratch.is_dir()
    assert [p.pid for p in place.tree()] == [process.pid]
    assert process.stop()
    assert process.stop()
    assert not process.is_alive()
    assert not place.tree()
    assert not place.scratch.exists()
    assert "serving" in place.log.read_text()


def test_no_command_line_tells_the_key_of_an_engine(place: Place) -> None:
    """Everybody on the machine may read command lines, the lifeline's too."""
    process = place.start(SERVER)
    process.wait_ready(place.endpoint, "/health", 20.0)
    lines = [info["cmdline"] or [] for info in (p.info for p in psutil.process_iter(["cmdline"]))]
    assert any("jobs.engines.lifeline" in line and str(place.scratch) in line for line in lines)
    assert not [line for line in lines if place.nonce in " ".join(line)]
    process.stop()


def test_stop_reaches_a_deaf_grandchild_in_a_session_of_its_own(place: Place) -> None:
    process = place.start(WITH_GRANDCHILD)
    process.wait_ready(place.endpoint, "/health", 20.0)
    assert len(place.tree()) == 2
    assert process.stop(grace_s=0.5)
    assert not place.tree()


def test_stop_reaches_the_grandchild_of_an_engine_that_is_already_dead(place: Place) -> None:
    process = place.start(WITH_GRANDCHILD)
    process.wait_ready(place.endpoint, "/health", 20.0)
    os.kill(process.pid, signal.SIGKILL)
    assert wait_for(lambda: not process.is_alive())
    assert len(place.tree()) == 1
    assert process.stop(grace_s=0.5)
    assert not place.tree()


def test_an_engine_that_ignores_term_is_killed(place: Place) -> None:
    process = place.start(STUBBORN)
    assert wait_for(lambda: "deaf" in process.log_tail())
    started = time.monotonic()
    assert process.stop(grace_s=0.5)
    assert 0.5 <= time.monotonic() - started < 30
    assert not process.is_alive()


def test_two_threads_may_stop_it_at_once(place: Place) -> None:
    process = place.start(STUBBORN)
    stopped: list[bool] = []
    threads = [threading.Thread(target=lambda: stopped.append(process.stop(grace_s=0.3))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stopped == [True, True]


def test_an_engine_that_ends_at_once_did_not_start(place: Place) -> None:
    process = place.start("import sys; print('no such model'); sys.exit(3)")
    with pytest.raises(EngineDidNotStart, match="it ended with exit code 3") as failure:
        process.wait_ready(place.endpoint, "/health", 20.0)
    assert failure.value.log_tail == "no such model"
    assert process.stop()


def test_an_engine_that_is_killed_did_not_start_and_the_signal_is_named(place: Place) -> None:
    process = place.start("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(EngineDidNotStart, match=r"SIGKILL \(out of memory\?\)"):
        process.wait_ready(place.endpoint, "/health", 20.0)
    assert process.stop()


def test_an_engine_that_is_never_ready_did_not_start(place: Place) -> None:
    process = place.start("import time; print('loading', flush=True); time.sleep(300)")
    assert wait_for(lambda: process.log_tail() == "loading")
    with pytest.raises(EngineDidNotStart, match=r"not ready within `engine\.start_timeout_s` = 0\.3") as failure:
        process.wait_ready(place.endpoint, "/health", 0.3)
    assert failure.value.log_tail == "loading"
    assert process.stop()


def test_the_start_can_be_given_up(place: Place) -> None:
    process = place.start("import time; time.sleep(300)")
    with pytest.raises(EngineDidNotStart, match="it was stopped while it started"):
        process.wait_ready(place.endpoint, "/health", 60.0, should_stop=lambda: True)
    assert process.stop()


def test_a_command_that_cannot_run_did_not_start(place: Place) -> None:
    with pytest.raises(
        EngineDidNotStart, match=r"'/nowhere/python' did not \(No such file or directory\)\. Check `engine\.python`"
    ):
        EngineProcess.start(Launch(("/nowhere/python",)), place.log, place.nonce, place.scratch)
    assert not place.scratch.exists()


def test_files_that_cannot_be_written_are_one_line(place: Place, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder must be")
    with pytest.raises(StorageFailed, match=r"log and scratch folder must be writable: .*logs"):
        place.start("pass")


def test_a_stranger_on_the_port_does_not_make_a_dead_engine_ready(place: Place) -> None:
    """The engine ends since its port is taken; the health check of who took it must not count."""
    stranger = place.start(SERVER)
    stranger.wait_ready(place.endpoint, "/health", 20.0)
    late = EngineProcess.start(
        Launch((sys.executable, "-c", "pass")), place.log, place.nonce + "-late", place.scratch / "late"
    )
    assert wait_for(lambda: not late.is_alive())
    with pytest.raises(EngineDidNotStart, match="exit code 0"):
        late.wait_ready(place.endpoint, "/health", 20.0)
    assert late.stop()
    assert stranger.stop()


def test_the_log_tail_shows_the_last_lines_whatever_the_bytes(place: Place) -> None:
    code = (
        r"import os; [os.write(1, b'line %d\n' % i) for i in range(9000)]; os.write(2, b'bad \xff\xfe bytes\r 50%\r100%\n')"
    )
    process = place.start(code)
    assert wait_for(lambda: not process.is_alive())
    lines = process.log_tail().splitlines()
    assert len(lines) == TAIL_LINES
    assert lines[-4:] == ["line 8999", "bad �� bytes", " 50%", "100%"]
    assert process.stop()


def test_no_log_has_no_tail(place: Place) -> None:
    process = place.start("pass")
    place.log.unlink()
    assert process.log_tail() == ""
    assert process.stop()


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_engine(place: Place) -> None:
    process = place.start(SERVER)
    process.wait_ready(place.endpoint, "/health", 20.0)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.is_alive()
    assert process.stop()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


OWNER = """
    import os, sys, threading, time
    from pathlib import Path
    from jobs.engines.base import Endpoint, Launch
    from jobs.engines.process import EngineProcess
    def own():
        launch = Launch((sys.executable, "-c", {code!r}))
        process = EngineProcess.start(launch, Path({log!r}), {nonce!r}, Path({scratch!r}))
        process.wait_ready(Endpoint("127.0.0.1", {port}, {nonce!r}), "/health", 20.0)
        print("ready", flush=True)
        time.sleep(300)
    threading.Thread(target=own).start()
"""


def test_a_killed_owner_leaves_no_engine_no_port_and_no_scratch(place: Place) -> None:
    """The engine is started from a thread, as in a Ray actor, and its grandchild is deaf and in another session."""
    port = place.endpoint.port
    code = WITH_GRANDCHILD.replace("{port}", str(port))
    text = textwrap.dedent(OWNER).format(
        code=code, log=str(place.log), scratch=str(place.scratch), nonce=place.nonce, port=port
    )
    owner = subprocess.Popen([sys.executable, "-c", text], env={"PYTHONPATH": str(PROJECT)}, stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(place.tree()) == 2
        os.kill(owner.pid, signal.SIGKILL)
    assert wait_for(lambda: not place.tree())
    assert wait_for(lambda: not place.scratch.exists())
    with pytest.raises(ConnectionRefusedError, match="refused"):
        socket.create_connection(("127.0.0.1", port))


def test_the_environment_is_minimal(tmp_path: Path) -> None:
    inherited = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "3",
        "OMP_NUM_THREADS": "2",
        "HF_HOME": "/cache",
        "TMPDIR": "/tmp",
        "PYTHONPATH": "/ours",
        "VIRTUAL_ENV": "/venv",
        "https_proxy": "http://proxy",
        "RAY_ADDRESS": "auto",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    environment = engine_environment({"PYTHONPATH": "/engine", "OMP_NUM_THREADS": "1"}, (MARKER, "n"), tmp_path, inherited)
    assert environment == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "3",
        "OMP_NUM_THREADS": "1",
        "HF_HOME": "/cache",
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": "/engine",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",
        MARKER: "n",
    }


def test_the_engine_runs_in_its_scratch_folder_with_its_environment(place: Place) -> None:
    process = place.start(
        "import os, tempfile; print(os.getcwd(), tempfile.gettempdir(), os.environ['EXTRA'])", EXTRA="more"
    )
    assert wait_for(lambda: not process.is_alive())
    scratch = place.scratch.resolve()
    assert process.log_tail() == f"{scratch} {scratch} more"
    assert process.stop()


def test_the_files_of_a_launch_lie_in_the_scratch_folder_before_the_start(place: Place) -> None:
    launch = Launch((sys.executable, "-c", "print(open('options.yaml').read())"), files={"options.yaml": "k: 3"})
    process = EngineProcess.start(launch, place.log, place.nonce, place.scratch)
    assert wait_for(lambda: not process.is_alive())
    assert process.log_tail() == "k: 3"
    assert process.stop()


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        pytest.param(0, "exit code 0", id="orderly"),
        pytest.param(-15, "SIGTERM", id="terminated"),
        pytest.param(-9, "SIGKILL (out of memory?)", id="killed"),
        pytest.param(-250, "signal 250", id="no such signal"),
    ],
)
def test_an_exit_status_in_words(returncode: int, words: str) -> None:
    assert ending(returncode) == words
