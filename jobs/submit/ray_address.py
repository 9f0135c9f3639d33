"""Owns whether a Ray dashboard answers at an address, and with which token. Does not own what is asked of it."""

from __future__ import annotations

import http.client
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs.errors import BadInput
from jobs.submit.values import first_line

ANSWER_LIMIT_S = 10.0
REMEDY = "Name the dashboard's address, as http://HEAD:8265."
TOKEN_PLACES = "RAY_AUTH_TOKEN, the file that RAY_AUTH_TOKEN_PATH names, or ~/.ray/auth_token"
TOKEN = re.compile(r"[!-~]+")
NEEDS_TOKEN = (401, 403)


def check_address(address: str) -> None:
    """`BadInput` unless it is the http address of some host. Asks nobody."""
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        sound = False
    if not sound or re.search(r"[^!-~]", address):
        raise BadInput(f"`--address` must be the http address of a Ray dashboard: got {address!r}. {REMEDY}")


def check_token() -> None:
    """`BadInput` for a token that no header can hold, without showing it."""
    place, token = _token()
    if place and not TOKEN.fullmatch(token.strip()):
        raise BadInput(
            f"The cluster's token must be one word of ASCII: got something else from {place}. "
            "`ray get-auth-token --generate` makes one."
        )


def believe_in_tokens() -> None:
    """Ray's client sends a token only in this mode, which `ray start` takes by itself where there is a token."""
    if has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def has_token() -> bool:
    """Whether Ray's client will find one. `BadInput` for one that cannot be read."""
    return bool(_token()[0])


def _token() -> tuple[str, str]:
    """Where Ray's client will find one, and the token; two "" where there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN", token
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(os.path.expanduser(named or "~/.ray/auth_token"))  # noqa: PTH111 (pathlib's raises)
    if not named and not path.is_file():
        return "", ""
    try:
        return str(path), path.read_text()
    except (OSError, UnicodeError):
        raise BadInput(f"The cluster's token must be in a file that can be read: got {path}. {TOKEN_PLACES}.") from None


def check_dashboard(address: str) -> None:
    """`BadInput` unless Ray answers there in time, be it that it wants a token. Ray's own client would wait for ever."""
    status, told = _version(address)
    if status in NEEDS_TOKEN:
        return  # Ray's client has it, and tells when it has not
    if status != 200:
        raise not_ray(address, f"HTTP {status}")
    if not _is_version(told):
        raise not_ray(address, "its /api/version is not Ray's")


def _version(address: str) -> tuple[int, Any]:
    """The status and the JSON, None where that is none."""
    import requests  # comes with ray[default]

    try:
        answer = requests.get(f"{address.rstrip('/')}/api/version", timeout=ANSWER_LIMIT_S)
        return answer.status_code, answer.json()
    except requests.exceptions.JSONDecodeError:
        return answer.status_code, None
    except requests.Timeout:
        raise not_ray(address, f"no answer within {ANSWER_LIMIT_S:g} s") from None
    except requests.exceptions.SSLError:
        raise not_ray(address, "TLS with it failed") from None
    except requests.ConnectionError:
        raise not_ray(address, "nothing there speaks HTTP") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise not_ray(address, first_line(str(error))) from None


def _is_version(told: Any) -> bool:
    return isinstance(told, dict) and isinstance(told.get("ray_version"), str)


def not_ray(address: str, why: str) -> BadInput:
    return BadInput(f"`--address` must be where a Ray dashboard answers: got {address}, and {why}. {REMEDY}")
