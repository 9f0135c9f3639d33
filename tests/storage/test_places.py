"""Runs in buckets, against a real server; and what is said of places that cannot be used."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import BUCKET, READER, WRITER, ObjectStore
from pyarrow import fs
from recorded import create_cell, create_request, create_row, create_session, record, refuse

import storage.claim as claims
from storage import places
from storage.compact import compact
from storage.errors import BadRun, SpecSweepError, StorageFailed
from storage.lock import mount_of
from storage.mirror import CACHE, copy_of
from storage.places import BucketPath, place_of
from storage.query import main as query
from storage.report.__main__ import main as report
from storage.rows import CellBatch, CellResult, History
from storage.runs import RunStore, history_of
from storage.views import open_runs

ROOT = Path(__file__).parents[2]
ROW = create_row(create_cell())
RESULT = CellResult(ROW, [create_request(ROW, index) for index in range(5)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    server = ObjectStore(tmp_path_factory.mktemp("objects"))
    server.start()
    admin = fs.S3FileSystem(
        access_key=WRITER["AWS_ACCESS_KEY_ID"],
        secret_key=WRITER["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=server.url,
        region="us-east-1",
        allow_bucket_creation=True,
    )
    admin.create_dir(BUCKET)
    yield server
    server.stop()


@pytest.fixture
def run(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a run that is not there yet, and the environment of somebody who may write it."""
    use(monkeypatch, server.url, WRITER)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    yield f"s3://{BUCKET}/sweeps/{secrets.token_hex(4)}"
    places._store.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, url: str, keys: dict[str, str]) -> None:
    places._store.cache_clear()
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true", **keys}.items():
        monkeypatch.setenv(name, value)


# ---------------------------------------------------------------------------------------------------- as in a folder


def test_what_was_written_into_a_bucket_is_read_back_and_resumed(run: str) -> None:
    assert history_of(run) == History()
    with RunStore.create(run, "grid: test\n") as store:
        store.write(create_session(ROW))
        store.write(CellBatch(ROW.cell_id, 1, 0, RESULT.requests[:2]))
        store.write(CellResult(ROW, RESULT.requests[2:], n_batches=1))
        store.write_log("s1", "AWS_SECRET_ACCESS_KEY=abcdef")
        with pytest.raises(StorageFailed, match="A try at a cell is recorded once"):
            store.write(RESULT)
    with RunStore.create(run, "grid: test\n") as store:
        assert [attempt.attempt for attempt in store.history().attempts] == [1]
        store.write(CellResult(create_row(create_cell(), attempt=2)))

    with open_runs([run]) as runs:
        found = runs.execute("SELECT run, attempt, n_requests FROM cells").fetchall()
        assert runs.execute("SELECT count(*) FROM attempts").fetchall() == [(2,)]
        assert runs.execute("SELECT count(*) FROM recorded_requests").fetchall() == [(5,)]
    assert found == [(run.rpartition("/")[2], 2, 0)]
    assert "abcdef" not in (place_of(run) / "logs" / "s1.log").read_text()


def test_the_same_rows_give_the_same_views_in_a_bucket_and_in_a_folder(run: str, tmp_path: Path) -> None:
    here = record(tmp_path / run.rpartition("/")[2], create_session(ROW), RESULT)
    record(run, create_session(ROW), RESULT)  # type: ignore[arg-type]

    with open_runs([run]) as remote, open_runs([here]) as local:
        for view in ("cells", "requests", "sessions", "attempts"):
            assert remote.execute(f"FROM {view}").fetchall() == local.execute(f"FROM {view}").fetchall()


def test_query_and_report_read_buckets_and_patterns_of_runs(
    run: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record(run, create_session(ROW), RESULT)  # type: ignore[arg-type]

    assert query([run, "SELECT n_requests FROM cells", "--format", "csv"]) == 0
    assert capfd.readouterr().out == "n_requests\n5\n"
    assert query([f"{run[:-2]}*", "SELECT count(*) AS n FROM cells", "--format", "csv"]) == 0
    assert capfd.readouterr().out == "n\n1\n"
    assert report([run, "-o", str(tmp_path / "report.md")]) == 0
    assert run.rpartition("/")[2] in (tmp_path / "report.md").read_text()


def test_a_file_is_fetched_once_and_again_when_it_changed(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record(run, create_session(ROW, ended_s=1.0), RESULT)  # type: ignore[arg-type]
    open_runs([run]).close()
    fetched: list[str] = []
    read = BucketPath.read_bytes
    monkeypatch.setattr(BucketPath, "read_bytes", lambda path: (fetched.append(path.name), read(path))[1])

    open_runs([run]).close()
    assert [name for name in fetched if name.endswith(".parquet")] == []

    with RunStore.open(run) as store:
        store.write(create_session(ROW, ended_s=2.0, error="longer than before"))
    with open_runs([run]) as runs:
        assert runs.execute("SELECT ended_s FROM sessions").fetchall() == [(2.0,)]


def test_a_run_in_a_bucket_is_compacted(run: str) -> None:
    results = [CellResult(create_row(create_cell(), attempt=n), RESULT.requests) for n in range(1, 5)]
    record(run, create_session(ROW), *results)  # type: ignore[arg-type]
    history = history_of(run)

    assert compact(run, grace_s=0).n_after == 3
    assert history_of(run) == history
    assert compact(run, grace_s=0).n_before == 3


def test_a_sweep_that_is_refused_leaves_no_run_in_a_bucket_that_would_bar_the_corrected_one(run: str) -> None:
    for _ in range(2):
        refuse(run)
        assert not place_of(run).exists()
        assert history_of(run) == History()
    with RunStore.create(run, "a: 3\n") as store:
        store.write(RESULT)
    assert (place_of(run) / "sweep.yaml").read_text() == "a: 3\n"


# --------------------------------------------------------------------------------------------------------- one driver


def test_a_second_driver_is_refused_until_the_first_ends(run: str) -> None:
    told = rf"A run has one driver at a time: {run} is in use by process {os.getpid()} on .*, last seen \d s ago"
    with RunStore.create(run, ""), pytest.raises(BadRun, match=told):
        RunStore.open(run)
    RunStore.open(run).close()
    assert (place_of(run) / ".lock").listing() == {}


HOLDER = """
import os, sys
sys.path[:0] = ['.', 'tests/storage']
from recorded import *
from storage.runs import RunStore
store = RunStore.create(sys.argv[1], 'a: 1')
print('held', flush=True)
for n in range(10**6):
    row = create_row(create_cell(), attempt=n + 1)
    store.write(CellResult(row, [create_request(row, i) for i in range(20)]))
    print(n, flush=True)
"""


def test_a_killed_driver_leaves_whole_tries_only_and_is_followed_at_once_here(run: str) -> None:
    driver = subprocess.Popen([sys.executable, "-c", HOLDER, run], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    written = [driver.stdout.readline() for _ in range(8)]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()

    with RunStore.open(run) as store:
        assert len(store.history().attempts) >= len(written) - 1
    with open_runs([run]) as runs:
        counts = runs.execute(
            "SELECT count(index) FROM recorded_cells LEFT JOIN recorded_requests USING (cell_id, attempt) GROUP BY attempt"
        ).fetchall()
    assert set(counts) == {(20,)}


def claim_of_another(run: str, *, host: str = "elsewhere") -> BucketPath:
    claim = BucketPath("s3", f"{run.removeprefix('s3://')}/.lock/{secrets.token_hex(8)}.json")
    claim.write_bytes(json.dumps({"owner": f"process 7 on {host}", "machine": host, "process": 7}).encode())
    return claim


def test_a_claim_of_another_machine_counts_until_it_is_stale(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RunStore.create(run, "").close()
    other = claim_of_another(run)
    with pytest.raises(BadRun, match=r"in use by process 7 on elsewhere, .* wait 90 s if it is dead"):
        RunStore.open(run)

    monkeypatch.setattr(claims, "STALE_S", 1.0)
    monkeypatch.setattr(claims, "RENEW_S", 0.2)
    time.sleep(2.1)  # the bucket tells whole seconds
    with RunStore.open(run) as store:
        assert not other.exists()
        store.write(RESULT)


def test_a_driver_whose_claim_was_taken_writes_no_more(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEW_S", 0.1)
    with RunStore.create(run, "") as store:
        until = time.monotonic() + 60
        while not store._lock._lost and time.monotonic() < until:  # type: ignore[attr-defined]
            for claim in (place_of(run) / ".lock").iterdir():
                claim.unlink(missing_ok=True)
        with pytest.raises(StorageFailed, match=r"the claim on .* was lost \(another driver took it over\)"):
            store.write(RESULT)
    assert history_of(run) == History()


# ------------------------------------------------------------------------------------------------------ what can go wrong


def mistake_of(run: str) -> str:
    with pytest.raises(SpecSweepError) as told:
        record(run, RESULT)  # type: ignore[arg-type]
    text = str(told.value)
    assert "\n" not in text
    assert "s3cret" not in text
    assert "reader-key" not in text
    return text


def test_a_bucket_that_does_not_exist_is_one_line(run: str) -> None:
    told = mistake_of(f"s3://absent-{secrets.token_hex(4)}/run")

    assert "A run's folder must be writable: got the bucket does not exist at s3://absent-" in told


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param(READER, "permission denied", id="may only read"),
        pytest.param(
            {**WRITER, "AWS_SECRET_ACCESS_KEY": "a-wrong-s3cret"}, "these credentials are not accepted", id="wrong"
        ),
        pytest.param({}, "permission denied, or no credentials", id="none"),
    ],
)
def test_credentials_that_do_not_suffice_are_one_line_without_them(
    run: str, server: ObjectStore, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], words: str
) -> None:
    use(monkeypatch, server.url, keys)

    assert f"got {words}" in mistake_of(run)


def test_somebody_who_may_only_read_reads(run: str, server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    record(run, create_session(ROW), RESULT)  # type: ignore[arg-type]
    use(monkeypatch, server.url, READER)

    with open_runs([run]) as runs:
        assert runs.execute("SELECT n_requests FROM cells").fetchall() == [(5,)]


def test_a_server_that_goes_away_in_mid_run_tears_nothing_and_the_run_goes_on_later(
    server: ObjectStore, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_TRIES", 2)
    places._store.cache_clear()
    row = create_row(create_cell(), attempt=2)
    second = CellResult(row, [create_request(row, index) for index in range(5)])
    store = RunStore.create(run, "")
    store.write(RESULT)
    store.write(CellBatch(ROW.cell_id, 2, 0, RESULT.requests[:1]))
    server.stop()
    try:
        with pytest.raises(StorageFailed, match="Results must be writable: the object store cannot be reached at s3://"):
            store.write(second)
        with pytest.raises(BadRun, match="the object store cannot be reached"):
            history_of(run)
        store.close()
    finally:
        server.start()
    places._store.cache_clear()

    with RunStore.open(run) as again:
        assert [attempt.attempt for attempt in again.history().attempts] == [1]
        again.write(second)
    with open_runs([run]) as runs:
        assert runs.execute("SELECT attempt, count(*) FROM recorded_requests GROUP BY ALL ORDER BY ALL").fetchall() == [
            (1, 5),
            (2, 5),
        ]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        pytest.param("ftp://host/run", r"a folder or a bucket: got ftp://\. There are s3://, gs://", id="another scheme"),
        pytest.param("s3://key:s3cret@bucket/run", "with nothing before or after", id="credentials"),
        pytest.param("s3://bucket/run?endpoint_override=host", "AWS_ENDPOINT_URL", id="options"),
        pytest.param("s3://", "must be named as s3://BUCKET/PATH", id="nothing"),
    ],
)
def test_a_url_that_is_none_of_ours_is_one_line_without_secrets(url: str, told: str) -> None:
    with pytest.raises(BadRun, match=told) as error:
        place_of(url)
    assert "s3cret" not in str(error.value)


def test_a_url_becomes_bucket_and_path() -> None:
    place = place_of("s3://bucket//a/b/")

    assert (str(place), place.name, str(place.parent), str(place / "c.x")) == (
        "s3://bucket/a/b",
        "b",
        "s3://bucket/a",
        "s3://bucket/a/b/c.x",
    )
    assert place_of("results/a") == Path("results/a")
    assert copy_of(place) != copy_of(place_of("s3://bucket/c/b"))  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------- NFS, and this disk

MOUNTS = """\
21 1 254:1 / / rw - ext4 /dev/vda rw
60 21 0:50 / /home rw - nfs4 server:/home rw,vers=4.2,local_lock=none
61 21 0:51 / /home/mine\\040too rw - nfs server:/x rw,vers=3,nolock,local_lock=all
"""


@pytest.mark.parametrize(
    ("folder", "kind", "option"),
    [
        pytest.param("/data/run", "ext4", "rw", id="a disk"),
        pytest.param("/home/you/run", "nfs4", "local_lock=none", id="NFS with locks"),
        pytest.param("/home/mine too/run", "nfs", "nolock", id="NFS without"),
    ],
)
def test_the_mount_of_a_folder_is_the_nearest_one(folder: str, kind: str, option: str) -> None:
    found, options = mount_of(Path(folder), MOUNTS)

    assert (found, option in options.split(",") or option in options) == (kind, True)


def test_nfs_with_locks_of_each_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_text(f"60 21 0:50 / {tmp_path} rw - nfs server:/x rw,local_lock=all\n")
    monkeypatch.setattr("storage.lock._MOUNTS", tmp_path / "mounts")

    with pytest.raises(BadRun, match=r"needs locks that all machines see: .* is mounted with local_lock=all"):
        RunStore.create(tmp_path / "run", "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", folder], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_fills_up_keeps_what_was_committed_and_goes_on_when_there_is_space(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(120_000))
    row = create_row(create_cell(), attempt=2, error=secrets.token_hex(60_000))
    with RunStore.create(small_disk / "run", "") as store:
        store.write(RESULT)
        with pytest.raises(StorageFailed, match=r"Results must be writable: No space left on device at .*cells"):
            store.write(CellResult(row, RESULT.requests))
        assert len(store.history().attempts) == 1
        with pytest.raises(StorageFailed, match="No space left"):
            store.write_log("s", secrets.token_hex(100_000))
    (small_disk / "ballast").unlink()
    with RunStore.open(small_disk / "run") as store:
        store.write(CellResult(row, RESULT.requests))
        assert len(store.history().attempts) == 2
