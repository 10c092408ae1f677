"""What a nodelet reads and writes, told apart without a machine."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.rehearsal.nodelet.boot import NotJoining, Taint, read_node_config
from infra.rehearsal.nodelet.pods.environment import ConfigError, environment
from infra.rehearsal.nodelet.pods.hosts import hosts_lines
from infra.rehearsal.nodelet.pods.images import PullError, unpack
from infra.rehearsal.nodelet.pods.volumes import write_atomically
from infra.stack.lustre import client_script


def certificate() -> str:
    from cryptography.hazmat.primitives import serialization

    from infra.rehearsal.nodelet.pods.logs import self_signed

    _, made = self_signed("10.0.0.1", "somewhere")
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


def node_config(**cluster: str) -> str:
    settings = {
        "name": "camp",
        "apiServerEndpoint": "https://10.77.0.10:6443",
        "certificateAuthority": certificate(),
        "cidr": "172.20.0.0/16",
    } | cluster
    lines = "\n".join(f"    {key}: {value!r}" for key, value in settings.items())
    return f"apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster:\n{lines}\n"


def mime(*documents: str) -> str:
    parts = "".join(f"--cut\nContent-Type: application/node.eks.aws\n\n{document}\n" for document in documents)
    return f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="cut"\n\n{parts}--cut--\n'


def test_node_configs_of_one_user_data_are_merged_and_their_flags_added_up() -> None:
    own = """
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance: {localStorage: {strategy: RAID0}}
  kubelet:
    config: {maxPods: 20}
    flags: ["--node-labels=a=1,b/c=2"]
"""
    eks = (
        node_config()
        + "  kubelet:\n    flags: ['--register-with-taints=nvidia.com/gpu=present:NoSchedule,x:NoExecute']\n"
    )
    found = read_node_config(mime(own, eks))
    assert (found.cluster, found.endpoint) == ("camp", "https://10.77.0.10:6443")
    assert found.labels == {"a": "1", "b/c": "2"} and found.max_pods == 20 and found.local_disk
    assert found.taints == (Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("x", "", "NoExecute"))


def test_lustre_is_mounted_where_the_user_data_brings_its_client() -> None:
    for script, brought in ((client_script(), True), ("#!/bin/sh\necho lustre-client\n", False)):
        user = mime(node_config()).replace("--cut--", f"--cut\nContent-Type: text/x-shellscript\n\n{script}\n--cut--")
        assert read_node_config(user).lustre_client is brought


def test_a_refused_node_config_names_every_finding_at_once() -> None:
    wrong = node_config(name="", apiServerEndpoint="10.77.0.10", certificateAuthority="bm90IGE=", cidr="172.20.0.0/40")
    with pytest.raises(NotJoining) as refusal:
        read_node_config(mime(wrong))
    for finding in ("cluster.name", "apiServerEndpoint", "certificateAuthority", "cluster.cidr"):
        assert finding in str(refusal.value)


@pytest.mark.parametrize("user_data", ["", "#!/bin/sh\necho hello\n", mime("kind: [NodeConfig")])
def test_user_data_without_a_readable_node_config_makes_no_node(user_data: str) -> None:
    with pytest.raises(NotJoining):
        read_node_config(user_data)


def test_variables_see_those_before_them_and_an_absent_config_map_is_waited_for() -> None:
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"rank/x": "3"}}, "spec": {}}
    rank = {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['rank/x']"}}}
    late = {"name": "LATE", "value": "$(RANK) $$(RANK) $(LATER)"}
    absent = {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}}
    found = environment(pod, {"env": [rank, late, absent]}, {"PATH": "/bin"}, lambda kind, name: None)
    assert found == {"PATH": "/bin", "RANK": "3", "LATE": "3 $(RANK) $(LATER)"}
    with pytest.raises(ConfigError, match='configmap "c" not found'):
        environment(pod, {"envFrom": [{"configMapRef": {"name": "c"}}]}, {}, lambda kind, name: None)


def test_an_endpoint_has_its_short_name_only_in_its_own_namespace() -> None:
    endpoint = {"hostname": "w-0", "addresses": ["10.42.0.9"], "conditions": {"ready": True}}
    metadata = {"namespace": "campaign", "labels": {"kubernetes.io/service-name": "gang"}}
    item = {"metadata": metadata, "endpoints": [endpoint, {**endpoint, "conditions": {"ready": False}}]}
    (home,) = hosts_lines(item, "campaign")
    (abroad,) = hosts_lines(item, "default")
    assert {"w-0.gang", "gang", "w-0.gang.campaign", "w-0.gang.campaign.svc.cluster.local"} <= set(home.split())
    assert "w-0.gang" not in abroad.split() and "w-0.gang.campaign.svc" in abroad.split()


def test_a_written_volume_changes_as_a_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path, {"a": b"1", "deep/b": b"2"}, 0o600)
    write_atomically(tmp_path, {"a": b"3"}, 0o600)
    assert (tmp_path / "a").read_bytes() == b"3"
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("..")] == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def layer(*entries: tuple[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    """`links`: name -> the file of the image that it is a hard link to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            member.size, member.uid = len(content), 12345
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.LNKTYPE, target
            tar.addfile(member)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../a", "opt/../../a", "out/a"])
def test_a_layer_that_leads_out_of_its_image_is_refused_and_writes_nothing_there(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    elsewhere.mkdir()
    root.mkdir()
    (root / "out").symlink_to(elsewhere)
    with pytest.raises(PullError, match="leads out of its image"):
        unpack(layer((name, b"1")), root)
    assert not (tmp_path / "a").exists() and list(elsewhere.iterdir()) == []


def test_a_hard_link_leads_to_a_file_of_the_image_and_to_no_other(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    other.write_bytes(b"1")
    with pytest.raises(PullError, match="leads out of its image"):
        unpack(layer(links={"a": "../secret"}), root)
    assert list(root.iterdir()) == [] and other.stat().st_nlink == 1
    unpack(layer(("./opt/a", b"1"), links={"opt/b": "/opt/a"}), root)
    assert (root / "opt/b").samefile(root / "opt/a")


@pytest.mark.parametrize("name", ["opt/.wh.", "opt/.wh..", "opt/.wh..."])
def test_a_layer_takes_away_nothing_but_what_it_names(tmp_path: Path, name: str) -> None:
    unpack(layer(("./opt/a", b"1")), tmp_path)
    with pytest.raises(PullError, match="leads out of its image"):
        unpack(layer((name, b"")), tmp_path)
    assert (tmp_path / "opt/a").exists()


def test_a_layers_absolute_names_lie_in_its_image_and_its_files_are_ours(tmp_path: Path) -> None:
    unpack(layer(("/opt/a", b"1")), tmp_path)
    assert (tmp_path / "opt/a").read_bytes() == b"1" and (tmp_path / "opt/a").stat().st_uid == os.geteuid()


def test_a_layer_can_take_away_what_a_lower_one_brought(tmp_path: Path) -> None:
    unpack(layer(("opt/a", b"1"), ("opt/b", b"2")), tmp_path)
    unpack(layer(("opt/.wh.a", b""), ("opt/c", b"3")), tmp_path)
    assert sorted(path.name for path in (tmp_path / "opt").iterdir()) == ["b", "c"]
