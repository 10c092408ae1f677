"""Data that the cluster has prepared are taken only if S3 has each file with the manifest's digest and size."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.data import in_cluster
from infra.errors import PermanentError

FILES = {"tokenizer.json": b"t", "a.bin": b"12345678", "a.idx": b"i"}


def sha(name: str) -> str:
    return hashlib.sha256(FILES[name]).hexdigest()


@pytest.mark.parametrize(
    ("name", "there", "wrong"),
    [("", b"", ""), ("a.bin", b"12345679", "a.bin: SHA-256"), ("a.idx", b"j", "a.idx: SHA-256")],
)
def test_a_file_with_another_digest_is_refused_by_name(
    name: str, there: bytes, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored = FILES | ({name: there} if name else {})
    shard = SimpleNamespace(
        file="a.bin", sha256=sha("a.bin"), index="a.idx", index_sha256=sha("a.idx"), tokens=len(FILES["a.bin"]) // 2
    )
    manifest = SimpleNamespace(tokenizer_sha256=sha("tokenizer.json"), train=[shard], validation=[], token_bytes=2)
    data = SimpleNamespace(digest="d", manifest=manifest)

    def head_object(Key: str, **_: Any) -> dict[str, Any]:
        content = stored[Key.rpartition("/")[2]]
        seen = base64.b64encode(hashlib.sha256(content).digest()).decode()
        return {"ChecksumSHA256": seen, "ContentLength": len(content)}

    account: Any = SimpleNamespace(client=lambda _: SimpleNamespace(head_object=head_object))
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    monkeypatch.setattr(in_cluster, "object_or_none", lambda *_: b"{}")
    monkeypatch.setattr(in_cluster, "load", lambda _: data)
    if not wrong:
        assert in_cluster.verified_data(account, "bucket", "d", lambda _: None) is data
        return
    with pytest.raises(PermanentError, match=wrong):
        in_cluster.verified_data(account, "bucket", "d", lambda _: None)
