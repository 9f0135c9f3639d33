"""Owns data sets of the hub at one commit, in the hub's own cache. Does not own what is in their files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import huggingface_hub  # what fetches is loaded when asked for: it takes half a second

from jobs.errors import BadInput
from jobs.models import HUB_FAILURES, HUB_TIMEOUT_S, reason_of

COMMIT = re.compile(r"[0-9a-f]{40}")


def data_set(name: str, revision: str, patterns: Sequence[str]) -> Path:
    """The folder with the files that match, downloaded if need be; `BadInput` for a moving revision, or without the hub."""
    if not COMMIT.fullmatch(revision):
        raise BadInput(
            f"`workload.revision` must be a commit of the data set, 40 hex digits, for what the hub calls main moves: got "
            f"{revision!r} for {name}. Its commits: https://huggingface.co/datasets/{name}/commits/main."
        )
    try:
        return fetched(name, revision, patterns)
    except HUB_FAILURES as failure:
        raise BadInput(
            f"`workload.path` must be a file, a folder, or a data set that the hub gives: got {name!r} at revision "
            f"{revision!r}. {reason_of(failure)}. Check the name, the network, HF_HUB_OFFLINE, and HF_TOKEN for gated "
            "data; or name a local file."
        ) from None


def fetched(name: str, revision: str, patterns: Sequence[str]) -> Path:
    """The same, with the hub's own exceptions (HUB_FAILURES). Without the hub, what its cache has of that commit."""
    wanted = [wish for pattern in patterns for wish in ([pattern[1:]] if pattern[0] == "/" else [pattern, f"*/{pattern}"])]
    download = partial(
        huggingface_hub.snapshot_download, name, repo_type="dataset", revision=revision, allow_patterns=wanted
    )
    try:
        huggingface_hub.HfApi().dataset_info(
            name, revision=revision, timeout=HUB_TIMEOUT_S
        )  # fails at once; a download tries for half a minute
    except HUB_FAILURES as failure:
        try:
            return Path(download(local_files_only=True))
        except HUB_FAILURES:
            raise failure from None
    return Path(download(etag_timeout=HUB_TIMEOUT_S))
