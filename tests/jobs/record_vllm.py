"""Records what a real vLLM streams: `python -m tests.jobs.record_vllm` in the project's root.

Owns how the recordings in tests/jobs/data are made, with a chain model (`chain_model.py`) and n-grams. Does not own what
they prove (`test_vllm_adapter.py`).
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from http.client import IncompleteRead
from pathlib import Path

import psutil

from jobs.engines.base import Ask
from jobs.engines.vllm import VllmEngine
from jobs.spec import Deployment, Draft, Engine, Model, Sampling
from tests.contracts import Running, events_of, exchange, start
from tests.jobs.chain_model import END, write_models

DATA = Path(__file__).with_name("data")
SCHEMA = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}'
LOOP = [5, 6, 7, 8, 9, 10, 11, 5, 6]
ASKS = {
    "ngram": Ask(LOOP, 12, Sampling(), ignore_eos=True),
    "limit_in_step": Ask([*LOOP[:-1]], 4, Sampling(), ignore_eos=True),
    "end_in_step": Ask([END - 2, END - 1, END, END + 1, END + 2, END - 3, END - 2], 12, Sampling()),
    "end_at_once": Ask([END - 3, END - 2, END - 1], 12, Sampling()),
    "nothing_drafted": Ask([20, 21], 3, Sampling(), ignore_eos=True),
    "logprobs": Ask(LOOP, 6, Sampling(), ignore_eos=True, wants_logprobs=True),
    "json_schema": Ask([11, 12, 13], 60, Sampling(), json_schema=SCHEMA),
}
MERGED = Ask([11, 12, 13], 120, Sampling(), ignore_eos=True)
BROKEN = Ask([11, 12, 13], 30_000, Sampling(), ignore_eos=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        running = start_engine(Path(folder))
        try:
            for name, ask in ASKS.items():
                write(name, max((events_of(running, ask) for _ in range(10)), key=len))  # with the fewest merged chunks
            write("merged", stalled(running))
            write("broken", interrupted(running))
        finally:
            running.process.stop()


def start_engine(folder: Path) -> Running:
    engine = Engine(name="vllm", device="cpu", dtype="float32", batch=4, kv_bytes=1 << 28, cuda_graphs=False, threads=1)
    deployment = Deployment(Model("chain", "target"), engine, Draft(method="ngram", k=3))
    return start(VllmEngine(), deployment, folder / "run", model_dir=folder / "target")


def stalled(running: Running) -> list[bytes]:
    """A stream whose server stands still for a moment in the middle, while the engine goes on."""
    server = psutil.Process(running.process.pid)
    request = running.engine.dialect.request(MERGED, running.endpoint)
    with exchange(request, running.endpoint) as response:
        lines = [response.readline() for _ in range(20)]
        server.send_signal(signal.SIGSTOP)
        try:
            server.wait(timeout=0.3)
        except psutil.TimeoutExpired:
            server.send_signal(signal.SIGCONT)
        return payloads([*lines, *response])


def interrupted(running: Running) -> list[bytes]:
    """A stream whose engine is killed in the middle, while its server lives on."""
    request = running.engine.dialect.request(BROKEN, running.endpoint)
    lines: list[bytes] = []
    with exchange(request, running.endpoint) as response:
        lines += [response.readline() for _ in range(20)]
        for child in psutil.Process(running.process.pid).children(recursive=True):
            if "EngineCore" in " ".join(child.cmdline()) or "EngineCore" in child.name():
                child.kill()
        with suppress(IncompleteRead, ConnectionError):
            lines.extend(response)
    return payloads(lines)


def payloads(lines: Sequence[bytes]) -> list[bytes]:
    return [line[len(b"data: ") :].rstrip() for line in lines if line.startswith(b"data: ")]


def write(name: str, events: Sequence[bytes]) -> None:
    (DATA / f"vllm-0.32.0-{name}.sse").write_bytes(b"".join(b"data: %s\n\n" % event for event in events))


if __name__ == "__main__":
    main()
