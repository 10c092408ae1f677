"""The looks of the pod on the system node: each is repeated for a while, and sees what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from infra.cluster import basics
from tests.worlds.s3 import FakeS3, Time, refusal


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(basics, "time", SimpleNamespace(monotonic=made, sleep=made.go))
    return made


@pytest.fixture
def s3(time: Time, monkeypatch: pytest.MonkeyPatch) -> FakeS3:
    fake_s3: Any = FakeS3(time)
    fake_s3.meta = SimpleNamespace(endpoint_url="http://localhost:5000")
    monkeypatch.setattr(basics, "from_pod", lambda heard: SimpleNamespace(list=lambda kind: iter("ab")))
    return fake_s3


CONFIG = basics.Basics(region="us-east-1", bucket="state", key="campaigns/c/basics")


def seen(s3: Any, shared: Path, only: str = "") -> dict[str, Any]:
    looks = basics.looks(CONFIG, SimpleNamespace(client=lambda service: s3), shared)  # type: ignore[arg-type]
    found = {name: one for name, one in looks.items() if only in name}
    return {name: basics.probe(name, look, cure, basics.time.monotonic() + 90) for name, (look, cure) in found.items()}


def test_a_sound_world_passes_and_keeps_nothing_of_it_on_the_file_system(s3: FakeS3, tmp_path: Path) -> None:
    found = seen(s3, tmp_path)
    assert list(found) == ["name_service", "state_bucket", "file_system", "kubernetes_api"]
    assert all(one.ok for one in found.values()) and not list(tmp_path.iterdir())
    assert found["kubernetes_api"].seen == "2 nodes" and "127.0.0.1" in found["name_service"].seen


def test_an_identity_that_comes_late_is_waited_for(s3: FakeS3, tmp_path: Path, time: Time) -> None:
    put, since = s3.put_object, time()

    def late(**asked: Any) -> Any:
        if time() < since + 60:
            raise NoCredentialsError
        return put(**asked)

    s3.put_object = late  # type: ignore[method-assign]
    assert seen(s3, tmp_path, "bucket")["state_bucket"].ok and 60 <= time() - since < 70


def test_what_does_not_come_is_told_with_its_cure(s3: FakeS3, tmp_path: Path, time: Time) -> None:
    s3.away, since = refusal("AccessDenied", 403), time()
    one = seen(s3, tmp_path, "bucket")["state_bucket"]
    assert not one.ok and "AccessDenied" in one.seen and "Pod Identity" in one.cure and 90 < time() - since < 100


def test_a_file_system_that_is_full_absent_or_lies_is_seen(s3: FakeS3, tmp_path: Path) -> None:
    absent = seen(s3, tmp_path / "none", "file")["file_system"]
    assert not absent.ok and "FileNotFoundError" in absent.seen

    class Lying(type(tmp_path)):  # type: ignore[misc]
        def read_bytes(self) -> bytes:
            read = super().read_bytes()
            return read[:-1] + bytes([read[-1] ^ 1])

    found = [seen(s3, Lying(tmp_path), "file")["file_system"]]
    assert not found[0].ok and "other bytes" in found[0].seen


def test_the_pods_message_is_what_the_driver_reads(s3: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, message = tmp_path / "basics.json", tmp_path / "message"
    config.write_text(CONFIG.model_dump_json())
    monkeypatch.setattr(basics, "CONFIG_FILE", config)
    monkeypatch.setattr(basics, "SHARED_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr(basics, "Account", lambda *_: SimpleNamespace(client=lambda service: s3))
    monkeypatch.setenv("BIVOUAC_TERMINATION_LOG", str(message))
    assert basics.main() == 0
    s3.away = refusal("AccessDenied", 403)
    assert basics.main() == 1
    assert [one["ok"] for one in json.loads(message.read_text())] == [True, False, True, True]
