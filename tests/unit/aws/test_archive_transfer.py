"""Parts of large objects whose answers come late, in any order, or not at all: none is lost, no slot stays taken."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, HTTPClientError

from infra.aws.parts import Altered
from infra.aws.transfer import MIB, Transfer
from tests.unit.archive.archive_story import S3, Wire, refused

PARTS, AT_ONCE = 7, 3
BODY = b"".join(bytes([number]) * MIB for number in range(PARTS - 1)) + b"the rest"
DIGEST = hashlib.sha256(BODY).hexdigest()


class Late(Wire):
    """Answers from other threads, the odd parts later than the even ones; `broken` parts never arrive."""

    def __init__(self, s3: S3) -> None:
        super().__init__(s3)
        self.broken: set[int] = set()
        self.refuses: set[int] = set()
        self.under_way = self.most = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(8)
        self._even = threading.Event()

    def put(self, where: dict[str, Any], headers: dict[str, str], body: Any, size: int) -> Future[dict[str, str]]:
        number = where["PartNumber"]
        return self._later(number, lambda: super(Late, self).put(where, headers, body, size).result())

    def get(self, where: dict[str, Any], start: int, into: memoryview, of: int) -> Future[int]:
        return self._later(start // MIB + 1, lambda: super(Late, self).get(where, start, into, of).result())

    def _later(self, number: int, work: Any) -> Future[Any]:
        if number in self.refuses:
            raise RuntimeError(f"part {number} cannot be asked for")
        answer: Future[Any] = Future()
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)

        def run() -> None:
            if number % 2:
                self._even.wait(0.02)
            else:
                self._even.set()
            with self._lock:
                self.under_way -= 1
            try:
                if number in self.broken:
                    raise HTTPClientError(error=f"part {number} is lost")
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)

        self._pool.submit(run)
        return answer

    def end(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def s3() -> S3:
    return S3()


@pytest.fixture
def wire(s3: S3) -> Iterator[Late]:
    wire = Late(s3)
    yield wire
    wire.end()


@pytest.fixture
def transfer(s3: S3, wire: Late) -> Transfer:
    return Transfer(s3, "b", MIB, AT_ONCE, wire)


def a_file(folder: Path, body: bytes = BODY) -> Path:
    path = folder / "shard"
    path.write_bytes(body)
    return path


def uploaded(transfer: Transfer, path: Path, key: str = "k") -> int:
    return transfer.upload(key, path, len(BODY), DIGEST, {"sha256": DIGEST})


def downloaded(transfer: Transfer, start: int = 0, file: Any = None) -> bytes:
    out, digest = io.BytesIO() if file is None else file, hashlib.sha256()
    transfer.download({"Key": "k"}, len(BODY), out, start, digest)
    content = bytes(out.getvalue())
    assert digest.hexdigest() == hashlib.sha256(content).hexdigest(), "what is hashed is what is written"
    return content


def all_slots(transfer: Transfer) -> bool:
    """Whether nobody holds a slot; they are as after the beginning."""
    taken = 0
    while transfer._slots.acquire(blocking=False):
        taken += 1
    for _ in range(taken):
        transfer._slots.release()
    return taken == AT_ONCE


def test_parts_that_end_in_any_order_make_the_object(transfer: Transfer, s3: S3, wire: Late, tmp_path: Path) -> None:
    assert uploaded(transfer, a_file(tmp_path)) == 0
    assert s3.held["k"] == (BODY, {"sha256": DIGEST}) and sorted(wire.sent) == list(range(1, PARTS + 1))
    assert 1 < wire.most <= AT_ONCE and all_slots(transfer)
    assert downloaded(transfer) == BODY and downloaded(transfer, 2 * MIB + 5) == BODY[2 * MIB + 5 :]
    assert wire.most <= AT_ONCE and all_slots(transfer)
    assert len(transfer._idle) <= AT_ONCE, "no more memory stays than parts are under way at once"


def test_what_is_hashed_without_being_kept_is_the_same(transfer: Transfer, tmp_path: Path) -> None:
    uploaded(transfer, a_file(tmp_path))
    digest = hashlib.sha256()
    transfer.download({"Key": "k"}, len(BODY), None, 0, digest)
    assert digest.hexdigest() == DIGEST


@pytest.mark.parametrize("lost", [1, 2, PARTS])
def test_a_part_that_is_lost_ends_the_upload_and_the_next_one_sends_it_alone(
    transfer: Transfer, s3: S3, wire: Late, tmp_path: Path, lost: int
) -> None:
    path = a_file(tmp_path)
    wire.broken = {lost}
    with pytest.raises(HTTPClientError, match=f"part {lost} is lost"):
        uploaded(transfer, path)
    assert "k" not in s3.held and all_slots(transfer), "nothing is under way any more"
    there = set(next(iter(s3.uploads.values()))["parts"])
    wire.broken, wire.sent = set(), []
    assert uploaded(transfer, path) == len(there)
    assert set(wire.sent) == set(range(1, PARTS + 1)) - there and s3.held["k"][0] == BODY


def test_a_part_that_cannot_be_asked_for_takes_no_slot(transfer: Transfer, s3: S3, wire: Late, tmp_path: Path) -> None:
    path = a_file(tmp_path)
    wire.refuses = {3}
    with pytest.raises(RuntimeError, match="part 3"):
        uploaded(transfer, path)
    assert all_slots(transfer)
    wire.refuses = set()
    uploaded(transfer, path)
    wire.refuses = {2}
    with pytest.raises(RuntimeError, match="part 2"):
        downloaded(transfer)
    assert all_slots(transfer)


@pytest.mark.parametrize("lost", [1, 3, PARTS])
def test_a_download_that_breaks_off_leaves_what_is_sound_and_goes_on_from_there(
    transfer: Transfer, wire: Late, tmp_path: Path, lost: int
) -> None:
    uploaded(transfer, a_file(tmp_path))
    wire.broken, file = {lost}, io.BytesIO()
    with pytest.raises(HTTPClientError, match=f"part {lost} is lost"):
        transfer.download({"Key": "k"}, len(BODY), file, 0, hashlib.sha256())
    sound = file.getvalue()
    assert sound == BODY[: (lost - 1) * MIB] and all_slots(transfer)
    wire.broken = set()
    assert sound + downloaded(transfer, len(sound)) == BODY


def test_a_disk_that_is_full_ends_the_download(transfer: Transfer, tmp_path: Path) -> None:
    uploaded(transfer, a_file(tmp_path))

    class Full(io.BytesIO):
        def write(self, content: Any) -> int:
            if self.tell() >= 2 * MIB:
                raise OSError(28, "No space left on device")
            return super().write(content)

    with pytest.raises(OSError, match="No space left"):
        transfer.download({"Key": "k"}, len(BODY), Full(), 0, hashlib.sha256())
    assert all_slots(transfer) and downloaded(transfer) == BODY


def test_a_digest_that_cannot_be_worked_out_is_told(transfer: Transfer, tmp_path: Path) -> None:
    class Broken:
        def update(self, _: Any) -> None:
            raise MemoryError

    uploaded(transfer, a_file(tmp_path))
    with pytest.raises(MemoryError):
        transfer.download({"Key": "k"}, len(BODY), None, 0, Broken())
    assert all_slots(transfer)


@pytest.mark.parametrize("change", [b"?" + BODY[1:], BODY[:-1], BODY + b"!"])
def test_a_file_that_changed_meanwhile_is_never_completed(
    transfer: Transfer, s3: S3, tmp_path: Path, change: bytes
) -> None:
    path = a_file(tmp_path, change)
    with pytest.raises(Altered):
        uploaded(transfer, path)
    assert not s3.held and all_slots(transfer)


def test_a_file_that_shrinks_while_it_is_read_is_altered(
    transfer: Transfer, s3: S3, wire: Late, tmp_path: Path
) -> None:
    path, put = a_file(tmp_path), wire.put

    def shrinks(where: dict[str, Any], headers: dict[str, str], body: Any, size: int) -> Future[dict[str, str]]:
        path.open("r+b").truncate(3 * MIB + 7)
        return put(where, headers, body, size)

    wire.put = shrinks  # type: ignore[method-assign]
    with pytest.raises(Altered, match="ended at byte"):
        uploaded(transfer, path)
    assert not s3.held and all_slots(transfer)


def test_two_transfers_at_once_share_the_slots(transfer: Transfer, s3: S3, wire: Late, tmp_path: Path) -> None:
    path = a_file(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: uploaded(transfer, path, key), ("k", "l", "m", "n")))
        assert {key: body for key, (body, _) in s3.held.items()} == dict.fromkeys(("k", "l", "m", "n"), BODY)
        assert list(pool.map(lambda _: downloaded(transfer), range(4))) == [BODY] * 4
    assert wire.most <= AT_ONCE and all_slots(transfer)


def test_who_was_first_is_not_overwritten_by_parts(transfer: Transfer, s3: S3, tmp_path: Path) -> None:
    s3.held["k"] = (b"first", {})
    with pytest.raises(ClientError, match="PreconditionFailed"):
        uploaded(transfer, a_file(tmp_path))
    assert s3.held["k"] == (b"first", {})


def test_an_upload_that_cannot_be_looked_into_is_an_error(
    transfer: Transfer, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: Any) -> Any:
        raise refused("AccessDenied", 403)

    s3.uploads["u"] = {"key": "k", "metadata": {}, "parts": {}}
    monkeypatch.setattr(s3, "_list_parts", denied)
    with pytest.raises(ClientError, match="AccessDenied"):
        uploaded(transfer, a_file(tmp_path))


def test_the_upload_that_was_begun_last_is_gone_on_with(transfer: Transfer, s3: S3, wire: Late, tmp_path: Path) -> None:
    whole = {number + 1: BODY[number * MIB : (number + 1) * MIB] for number in range(PARTS)}
    digest = {"sha256": DIGEST}
    s3.uploads["a-early"] = {"key": "k", "metadata": digest, "parts": {1: whole[1]}}
    s3.uploads["b-late"] = {"key": "k", "metadata": digest, "parts": {number: whole[number] for number in (1, 2, 7)}}
    assert uploaded(transfer, a_file(tmp_path)) == 3
    assert sorted(wire.sent) == [3, 4, 5, 6] and s3.held["k"][0] == BODY and set(s3.uploads) == {"a-early"}


def test_parts_go_through_the_runtime_unless_another_sender_is_given(
    s3: S3, wire: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.aws.transfer.PartTransfers", lambda of: ("the runtime", of))
    assert Transfer(s3, "b").parts == ("the runtime", s3) and Transfer(s3, "b", parts=wire).parts is wire
