"""Owns where a run may be: a folder of a file system, or of a bucket (`s3://`, `gs://`). Does not own what is in it.

A `BucketPath` has the part of pathlib's interface that storage needs, and fails as pathlib does: with an `OSError` whose
`strerror` says in words what is wrong. What people set in the environment for other tools counts here too (`AWS_...`,
`GOOGLE_APPLICATION_CREDENTIALS`): no secret is in a path, and none is shown.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from pyarrow import fs

from storage.errors import BadRun

SCHEMES = ("s3", "gs")
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<key>.*)", re.DOTALL)
_CONNECT_S, _REQUEST_S, _TRIES = 5.0, 30.0, 4

_WORDS = (
    (r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist", errno.ENOENT, "the bucket does not exist"),
    (r"SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN|EXPIRED|UNAUTHENTICATED|credentials",
     errno.EACCES, "these credentials are not accepted"),
    (r"ACCESS_DENIED|PERMISSION_DENIED|HTTP status 403|Forbidden",
     errno.EACCES, "permission denied, or no credentials (of the environment, a profile or the machine's role)"),
    (r"NETWORK_CONNECTION|REQUEST_TIMEOUT|curlCode|UNAVAILABLE|DEADLINE_EXCEEDED|Could not resolve",
     errno.EHOSTUNREACH, "the object store cannot be reached"),
    (r"NO_SUCH_KEY|Path does not exist", errno.ENOENT, "no such object"),
)  # fmt: skip
"""What an object store says → the error's number, and words."""


@dataclass(frozen=True, order=True)
class BucketPath:
    """A place in a bucket. A folder of a bucket exists as long as a file is in it, at any depth: of the last one that goes,
    Arrow leaves an object that stands for the empty folder."""

    scheme: str
    key: str
    """The bucket's name, then the path in it."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    def __truediv__(self, name: str | Path) -> BucketPath:
        return BucketPath(self.scheme, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> BucketPath:
        parent = self.key.rpartition("/")[0]
        return BucketPath(self.scheme, parent) if parent else self

    def resolve(self) -> BucketPath:
        return self

    def relative_to(self, other: BucketPath) -> PurePosixPath:
        return PurePosixPath(self.key).relative_to(other.key)

    def exists(self) -> bool:
        return self.is_dir() or self.is_file()  # in this order: a listing that is refused says why, a HEAD does not

    def is_file(self) -> bool:
        return self.facts() is not None

    def is_dir(self) -> bool:
        found = self.listing()
        return any(info.type == fs.FileType.File for info in found.values()) or any((self / name).is_dir() for name in found)

    def facts(self) -> fs.FileInfo | None:
        """Size and time of an object; None where there is none."""
        with _in_words(self):
            info = _store(self.scheme, self.bucket).get_file_info(self.key)
        return info if info.type == fs.FileType.File else None

    def listing(self) -> dict[str, fs.FileInfo]:
        """Name → size, time and kind of what is in the folder; nothing for a folder that does not exist."""
        with _in_words(self):
            found = _store(self.scheme, self.bucket).get_file_info(fs.FileSelector(self.key, allow_not_found=True))
        return {PurePosixPath(info.path).name: info for info in found}

    def iterdir(self) -> Iterator[BucketPath]:
        return (self / name for name in sorted(self.listing()))

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """What is in the folder itself and has such a name."""
        return (self / name for name in sorted(self.listing()) if fnmatch.fnmatchcase(name, pattern))

    def read_bytes(self) -> bytes:
        with _in_words(self), _store(self.scheme, self.bucket).open_input_file(self.key) as file:
            content: bytes = file.readall()
            return content

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes | memoryview) -> None:
        """One object, visible as a whole once this returns: small ones by a single PUT, which is atomic."""
        store = _store(self.scheme, self.bucket)
        with _in_words(self), store.open_output_stream(self.key, compression=None) as file:
            file.write(content)  # whole, and at once: leaving the block for an error of ours would publish a torn object

    def unlink(self, missing_ok: bool = False) -> None:
        with _in_words(self):
            try:
                _store(self.scheme, self.bucket).delete_file(self.key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Nothing: a bucket has no folders."""

    @property
    def bucket(self) -> str:
        return self.key.partition("/")[0]


Place: TypeAlias = "Path | BucketPath"


def is_url(text: str) -> bool:
    return bool(_URL.match(text))


def place_of(text: Place | str) -> Place:
    """The place that a user named. Raises `BadRun` for a URL that is none of ours, or holds more than bucket and path."""
    if not isinstance(text, str):
        return text
    found = _URL.match(text)
    if not found:
        return Path(text)
    scheme, key = found["scheme"], found["key"].strip("/")
    if scheme not in SCHEMES:
        raise BadRun(f"A run must be in a folder or a bucket: got {scheme}://. There are {_known()}. Use one of them.")
    if "@" in key or "?" in key or not key:  # never shown: it may be a secret
        raise BadRun(
            f"A bucket must be named as {scheme}://BUCKET/PATH, with nothing before or after: got more or less than that. "
            "Credentials, region and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL)."
        )
    return BucketPath(scheme, "/".join(part for part in key.split("/") if part))


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)


@functools.lru_cache(maxsize=16)
def _store(scheme: str, bucket: str) -> fs.FileSystem:
    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=_REQUEST_S))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return fs.S3FileSystem(
        region=_region(bucket, endpoint),
        endpoint_override=endpoint.rstrip("/") or None,  # said here, since Arrow itself heeds it in URIs only
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(_TRIES),
        background_writes=False,
        allow_delayed_open=True,  # a small object is one PUT
    )


def _region(bucket: str, endpoint: str) -> str:
    """As the environment says; AWS itself is asked, and other servers, which have none, get the name of the first."""
    told = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or (endpoint and "us-east-1")
    return told or str(fs.resolve_s3_region(bucket))


@contextlib.contextmanager
def _in_words(path: BucketPath) -> Iterator[None]:
    """What an object store says, as an `OSError` in words and without its request ids, addresses or keys."""
    try:
        yield
    except OSError as error:
        said = str(error)
        for pattern, number, words in _WORDS:
            if re.search(pattern, said):
                raise OSError(number, words, str(path)) from error
        name = re.search(r"AWS Error (\w+)", said)
        raise OSError(
            errno.EIO, f"the object store refused ({name[1] if name else type(error).__name__})", str(path)
        ) from error
