"""Pods with a security context, and pods with claims on folders of nodes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from tests.worlds.nodelet_site import INSIDE, NodeletSite, pod

pytestmark = INSIDE

WHO_AM_I = """
import json, os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
said = {"user": [os.getuid(), os.getgid()], "no_new_privileges": int(status["NoNewPrivs"])}
said |= {key: int(status[key], 16) for key in ("CapEff", "CapPrm", "CapBnd")}
def tried(act):
    try:
        act()
    except OSError as error:
        return error.errno
    return 0
said["root"] = tried(lambda: open("/etc/mine", "w"))
said["volume"] = tried(lambda: open("/scratch/mine", "w").write("x"))
said["host name"] = tried(lambda: socket.sethostname("other"))
open("/dev/termination-log", "w").write("heard")
print(json.dumps(said))
"""
BARE: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SCRATCH: dict[str, Any] = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
SETS = ("CapEff", "CapPrm", "CapBnd")


def test_a_security_context_is_honoured(site: NodeletSite, image: str) -> None:
    nobody = {"runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": True}
    own = {"securityContext": {**BARE, "readOnlyRootFilesystem": True}, **SCRATCH}
    root = {"securityContext": {**BARE, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}, **SCRATCH}
    volumes = [{"name": "scratch", "emptyDir": {}}]
    site.apply(
        pod("confined-nobody", image, WHO_AM_I, container=own, volumes=volumes, securityContext=nobody),
        pod("bare-root", image, WHO_AM_I, container=root, volumes=volumes),
        pod("unasked", image, WHO_AM_I, container=SCRATCH, volumes=volumes),
    )
    names = ("confined-nobody", "bare-root", "unasked")
    assert [site.ended(name).get("message") for name in names] == ["heard"] * 3, site.kubectl("logs", "confined-nobody")
    seen = {name: json.loads(site.kubectl("logs", name)) for name in names}
    bare = {"no_new_privileges": 1, "volume": 0, "host name": 1}
    assert seen["confined-nobody"] == {**bare, "user": [65532, 65532], "root": 30, **dict.fromkeys(SETS, 0)}
    assert seen["bare-root"] == {**bare, "user": [0, 0], "root": 0, **dict.fromkeys(SETS, 1 << 10)}
    # What containerd leaves by default, as `capsh --decode=00000000a80425fb` lists it.
    assert seen["unasked"]["CapEff"] == 0xA80425FB and seen["unasked"]["no_new_privileges"] == 0


WRITES = """
import os
os.mkdir("/scratch/own", 0o700)
os.close(os.open("/scratch/own/secret", os.O_CREAT | os.O_WRONLY, 0o600))
print(os.stat("/scratch/own/secret").st_uid)
"""
READS = """
import json, os
def tried(flags):
    try:
        os.close(os.open("/scratch/own/secret", flags))
    except OSError as error:
        return error.errno
    return 0
print(json.dumps([os.getuid(), tried(os.O_RDONLY), tried(os.O_WRONLY)]))
"""


def test_a_file_that_is_for_its_user_alone_is_so_where_root_has_made_the_site(site: NodeletSite, image: str) -> None:
    """On AWS it is. Where one user is all that a site owns, every pod may read what another has written."""
    volumes = [{"name": "scratch", "hostPath": {"path": "/var/lib/rights", "type": "DirectoryOrCreate"}}]
    sticky = "import os; os.chmod('/scratch', 0o1777)"
    rights = {**BARE, "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}}
    (node,) = site.ready_nodes()[:1]
    where: dict[str, Any] = {"volumes": volumes, "nodeSelector": {"kubernetes.io/hostname": node}}

    def ran(name: str, script: str, user: int, context: dict[str, Any], read_only: bool = False) -> str:
        own = {"securityContext": context, "volumeMounts": [{**SCRATCH["volumeMounts"][0], "readOnly": read_only}]}
        site.apply(
            pod(name, image, script, container=own, securityContext={"runAsUser": user, "runAsGroup": user}, **where)
        )
        assert site.ended(name)["exitCode"] == 0, site.kubectl("logs", name)
        return site.kubectl("logs", name)

    ran("rights-made", sticky, 0, BARE)
    assert ran("rights-own", WRITES, 1234, BARE).split() == ["1234"]
    shown = Path("/proc/self/uid_map").read_text().split()[2] != "1"
    seen = {
        "nobody": json.loads(ran("rights-nobody", READS, 65532, BARE)),
        "bare root": json.loads(ran("rights-root", READS, 0, BARE)),
        "root that reads all": json.loads(ran("rights-all", READS, 0, rights, read_only=True)),
    }
    refused = 13 if shown else 0
    assert seen["nobody"] == [65532, refused, refused] and seen["bare root"] == [0, refused, refused]
    assert seen["root that reads all"] == [0, 0, 30], "it reads, and writes nothing"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "privileged": ({"privileged": True}, {}, "privileged"),
    "strange": ({"capabilities": {"add": ["FLY"]}}, {}, "capability FLY"),
    "group": ({}, {"securityContext": {"fsGroup": 12}}, "fsGroup"),
    "processes": ({}, {"hostPID": True}, "hostPID"),
    "as-root": ({"runAsNonRoot": True}, {}, "would run as root"),
}
"""Pod -> context of its container, fields of the pod, and a word of what is said."""


def test_a_security_context_that_cannot_be_honoured_is_refused(site: NodeletSite, image: str) -> None:
    site.apply(
        *(pod(name, image, "", container={"securityContext": own}, **more) for name, (own, more, _) in REFUSED.items())
    )

    def waits(name: str) -> str:
        statuses = site.pod(name)["status"].get("containerStatuses", [])
        waiting = statuses[0]["state"].get("waiting", {}) if statuses else {}
        return str(waiting.get("message")) if waiting.get("reason") == "CreateContainerConfigError" else ""

    for name, (_, _, word) in REFUSED.items():
        assert word in site.until(partial(waits, name)), name
    site.kubectl("delete", "pod", *REFUSED, "--grace-period=0", "--force")


def test_a_claim_on_a_folder_of_the_node_is_another_folder_on_every_node(site: NodeletSite, image: str) -> None:
    size, shared = {"storage": "1Gi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    path = {"path": "/mnt/k8s-disks/0/claimed", "type": "DirectoryOrCreate"}
    claim = {**shared, "volumeName": "local", "resources": {"requests": size}}
    site.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "local"},
            "spec": {**shared, "capacity": size, "hostPath": path},
        },
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "local"}, "spec": claim},
    )
    mounts = {"volumeMounts": [{"name": "local", "mountPath": "/local-checkpoints"}]}
    volumes = [{"name": "local", "persistentVolumeClaim": {"claimName": "local"}}]
    nodes = site.two_nodes()
    for number, node in enumerate((*nodes, nodes[0])):
        script = f"echo {number} >> /local-checkpoints/it; cat /local-checkpoints/it"
        where = {"nodeSelector": {"kubernetes.io/hostname": node}}
        site.apply(pod(f"local-{number}", image, script, kind="sh", container=mounts, volumes=volumes, **where))
        assert site.ended(f"local-{number}")["exitCode"] == 0
    assert [site.kubectl("logs", f"local-{number}").split() for number in range(3)] == [["0"], ["1"], ["0", "2"]]
