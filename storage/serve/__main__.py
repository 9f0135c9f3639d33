"""Owns `python -m storage.serve`. Does not own what its pages say."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Sequence

import uvicorn

from storage.command import OneLineParser, run_command
from storage.errors import BadInput
from storage.places import place_of
from storage.serve.guard import Door, is_loopback
from storage.serve.pages import Limits, create_app
from storage.serve.shelf import Shelf

PORT = 8280
TOKEN = "SPECSWEEP_SERVE_TOKEN"
"""Variable with the token to ask for; without it, one is made for each start."""

SHORTEST_TOKEN = 16
AT_ONCE = 64  # connections
EPILOG = f"""\
examples:
  python -m storage.serve results                          on http://127.0.0.1:{PORT}/
  python -m storage.serve s3://BUCKET/results --port 0     runs of a bucket, on a port that is free
  python -m storage.serve results --host 0.0.0.0           for other machines: asks for a token, and prints it
From another machine, `ssh -L {PORT}:127.0.0.1:{PORT} HOST` is the better way: it encrypts.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command until it is interrupted; returns its exit code: 0, or 2 for bad input."""
    return run_command(lambda: _serve(_parser().parse_args(arguments)))


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="python -m storage.serve",
        description="A local web page over all runs of a folder: list, reports, comparison, SQL. It writes nothing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", metavar="RESULTS", help="the folder that the runs are in, here or in a bucket")
    parser.add_argument("--host", default="127.0.0.1", help="what to listen on; any but loopback asks for a token")
    parser.add_argument("--port", type=_port, default=PORT, help="0 = any that is free")
    parser.add_argument(
        "--token", action="store_true", help="ask for a token on loopback, too: where others use this machine"
    )
    parser.add_argument(
        "--sql-seconds", type=_seconds, default=30.0, metavar="S", help="the most that one question may take"
    )
    return parser


def _serve(options: argparse.Namespace) -> int:
    _nice()  # first: a thread keeps what it started with, and the shelf starts one
    shelf = Shelf(place_of(options.results))
    token = token_for(options.host, is_wanted=options.token)
    with contextlib.closing(shelf), _listening(options.host, options.port) as listener:
        door = Door(options.host, listener.getsockname()[1], token)
        sys.stdout.write(_welcome(door, shelf))
        sys.stdout.flush()
        config = uvicorn.Config(
            create_app(shelf, door, Limits(seconds=options.sql_seconds)),
            log_level="warning",
            access_log=False,  # addresses hold SQL, and once the token
            server_header=False,
            limit_concurrency=AT_ONCE,
            timeout_graceful_shutdown=1,
        )
        with contextlib.suppress(KeyboardInterrupt):  # the way that a page ends
            uvicorn.Server(config).run(sockets=[listener])
    return 0


def token_for(host: str, *, is_wanted: bool) -> str:
    """The token that is asked for; "" for none. Raises `BadInput` for one that is easily guessed."""
    if is_loopback(host) and not is_wanted:
        return ""
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise BadInput(
            f"{TOKEN} must be {SHORTEST_TOKEN} plain characters or more: got {len(token)} characters. "
            "Leave it unset, and one is made."
        )
    return token


def _welcome(door: Door, shelf: Shelf) -> str:
    lines = [f"{shelf.folder} is shown at {door.address} (Ctrl-C ends)."]
    if not is_loopback(door.host):
        lines.append(
            "Other machines can reach it: who has the token can read every run. It is asked for, and not encrypted."
        )
    return "\n".join(lines) + "\n"


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadInput(
            f"--host and --port must be free and of this machine: got {error.strerror} for {host}, port {port}. "
            "Try --port 0 for any that is free."
        ) from error


def _nice() -> None:
    """Whoever looks on must not disturb what is measured on this machine."""
    with contextlib.suppress(OSError):
        os.nice(10)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535: got {text}")
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 3600:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be above 0 and at most 3600: got {text}")


if __name__ == "__main__":
    sys.exit(main())
