"""Owns the process of one engine: its environment, start, readiness, log and end. Does not own what is asked of the engine.

The engine stays in its owner's process group, so that what ends the worker ends it too; the lifeline reaps what that misses.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from jobs.engines import control
from jobs.engines.base import Endpoint, Launch
from jobs.engines.lifeline import Lifeline, end_tree
from jobs.errors import EngineDidNotStart, StorageFailed

MARKER = "SPECSWEEP_SESSION"
"""The variable that every descendant of an engine carries, with the session's nonce as its value."""

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
PASSED_CACHES = (
    "XDG_CACHE_HOME",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "VLLM_CACHE_ROOT",
    "TRANSFORMERS_CACHE",
)
PASSED_FAMILIES = ("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ROCM_", "OMP_", "HF_", "NCCL_", "GLOO_")
FIXED = {
    "PYTHONUNBUFFERED": "1",  # the log's tail must hold the last words of an engine that is killed
    "SPT_NOENV": "1",  # setproctitle (in vLLM and others) would write the title over the environment, the marker with it
}

TERM_GRACE_S = 10.0
REAP_LIMIT_S = 5.0
POLL_S = 0.1
TAIL_LINES = 40
TAIL_BYTES = 16_384


class EngineProcess:
    """One started engine with its lifeline. `start` makes it; whoever started it calls `stop`."""

    def __init__(
        self, popen: subprocess.Popen[bytes], lifeline: Lifeline, marker: tuple[str, str], log_path: Path, scratch: Path
    ) -> None:
        self._popen = popen
        self._root = psutil.Process(popen.pid)  # knows when it started: a process that gets its number later is not it
        self._lifeline = lifeline
        self._marker = marker
        self._log_path = log_path
        self._scratch = scratch
        self._started_s = time.monotonic()
        self._stopping = threading.Lock()
        self._stopped = False

    @classmethod
    def start(cls, launch: Launch, log_path: Path, nonce: str, scratch: Path) -> EngineProcess:
        """Start it in `scratch`, its output in the log; `EngineDidNotStart` or `StorageFailed` when it cannot.

        `scratch` goes with the engine: `stop`, or else the lifeline, removes it. Keep its path short: engines put
        sockets there, and those may have 100 characters or so.
        """
        marker, scratch = (MARKER, nonce), scratch.absolute()
        environment = engine_environment(launch.env, marker, scratch, os.environ)
        log = _open_log(log_path, scratch, launch.files)
        lifeline = Lifeline(marker, [scratch])
        try:
            popen = _spawn(launch.argv, environment, log, scratch)
        except OSError as failure:
            lifeline.close()
            shutil.rmtree(scratch, ignore_errors=True)
            raise EngineDidNotStart(
                f"the engine's command must run: {launch.argv[0]!r} did not ({failure.strerror}). Check `engine.python`."
            ) from None
        return cls(popen, lifeline, marker, log_path, scratch)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def wait_ready(
        self, endpoint: Endpoint, health_path: str, timeout_s: float, should_stop: Callable[[], bool] = lambda: False
    ) -> float:
        """Block until it answers its health check; the seconds since its start. `EngineDidNotStart` with the log's tail."""
        while True:
            if not self.is_alive():
                raise self._did_not_start(f"it ended with {ending(self._popen.returncode)}")
            if should_stop():
                raise self._did_not_start("it was stopped while it started")
            if control.is_healthy(endpoint, health_path):
                return time.monotonic() - self._started_s
            if time.monotonic() - self._started_s > timeout_s:
                raise self._did_not_start(f"it was not ready within `engine.start_timeout_s` = {timeout_s:g}")
            time.sleep(POLL_S)

    def wait(self) -> str:
        """Block until it has ended; how, in words."""
        return ending(self._popen.wait())

    def log_tail(self) -> str:
        """The last lines of the log; what is no UTF-8 is shown as �."""
        with suppress(OSError), self._log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:])
        return ""

    def stop(self, grace_s: float = TERM_GRACE_S) -> bool:
        """End the whole tree, then remove the scratch folder. Safe to call twice, from any thread; True = all gone."""
        with self._stopping:
            if not self._stopped:
                self._stopped = end_tree(self._marker, grace_s=grace_s, roots=[self._root])
                with suppress(subprocess.TimeoutExpired):
                    self._popen.wait(REAP_LIMIT_S)  # reads the exit status, so that no zombie stays
                if self._stopped:
                    self._lifeline.close()
                    shutil.rmtree(self._scratch, ignore_errors=True)
            return self._stopped

    def _did_not_start(self, what: str) -> EngineDidNotStart:
        return EngineDidNotStart(f"the engine must start: {what}. Its log: {self._log_path.name}.", log_tail=self.log_tail())


def engine_environment(
    added: Mapping[str, str], marker: tuple[str, str], scratch: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """A minimal environment: no proxies, no PYTHONPATH of ours; devices, threads and caches as the node has them."""
    passed = {
        name: value
        for name, value in inherited.items()
        if name in PASSED or name in PASSED_CACHES or name.startswith(PASSED_FAMILIES)
    }
    return {**passed, **FIXED, "TMPDIR": str(scratch), **added, marker[0]: marker[1]}


def free_port() -> int:
    """A port on loopback that is free now. Another process may take it first: `Engine.facts` proves who answers."""
    return free_ports(1, "127.0.0.1")[0]


def free_ports(count: int, address: str) -> list[int]:
    """Different ones that are free now at an address of this machine."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((address, 0), family=_family(address))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def ending(returncode: int) -> str:
    """An exit status in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else f"signal {-returncode}"
    return f"{name} (out of memory?)" if name == "SIGKILL" else name


def _open_log(log_path: Path, scratch: Path, files: Mapping[str, str]) -> BinaryIO:
    """The log, ready for what the engine writes, and the scratch folder beside it, with the files that the engine reads."""
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (scratch / name).write_text(text, encoding="utf-8")
        log_path.parent.mkdir(parents=True, exist_ok=True)
        return log_path.open("ab")
    except OSError as failure:
        raise StorageFailed(f"the engine's log and scratch folder must be writable: {failure}.") from None


def _spawn(argv: tuple[str, ...], environment: dict[str, str], log: BinaryIO, scratch: Path) -> subprocess.Popen[bytes]:
    with log, _blocked(signal.SIGINT):
        return subprocess.Popen(
            argv, env=environment, cwd=scratch, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """What starts in here inherits the signal blocked: a Ctrl-C in the terminal is ours to handle, not the engine's."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
