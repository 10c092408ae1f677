"""A pod's volumes, on the machine's disk, kept current while the pod lives."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from infra.errors import TemporaryError
from infra.rehearsal.nodelet.client import NOT_FOUND, Api, ApiRefused, Object, decode_values, namespaced_path
from infra.rehearsal.nodelet.machine import LOCAL_DISK
from infra.rehearsal.nodelet.pods import mountpoint
from infra.rehearsal.nodelet.pods.environment import field
from infra.rehearsal.nodelet.pods.mountpoint import Mountpoint
from infra.rehearsal.nodelet.pods.sandbox import Bind, remove_tree

FSX_DRIVER = "fsx.csi.aws.com"
RETRY = timedelta(seconds=2)
REFRESH_S = 60.0
"""A kubelet's interval for ConfigMap and Secret changes."""
MNT_DETACH = 2
IDENTITY_VOLUME = "eks-pod-identity-token"
IDENTITY_FOLDER = "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount"
IDENTITY_AUDIENCE = "pods.eks.amazonaws.com"

Payload = dict[str, bytes]


class NotMounted(TemporaryError):
    """FailedMount: something is missing and may still appear."""

    def __init__(self, subject: str, *, seen: object = None, cure: str | None = None) -> None:
        super().__init__(subject, seen=seen, cure=cure, delay=RETRY)


class Volumes:
    """The volumes of one pod, below `folder`. `lustre` returns True once the machine has a client."""

    def __init__(
        self,
        api: Api,
        pod: Object,
        folder: Path,
        work: Path,
        fsx_root: Path,
        local_disk: bool,
        lustre: Callable[[], bool],
        s3_driver: Mountpoint,
    ) -> None:
        self._api, self._pod, self._folder, self._lustre = api, pod, folder, lustre
        self._s3_driver = s3_driver
        self._work, self._fsx_root, self._local_disk = work, fsx_root, local_disk
        self._namespace = pod["metadata"]["namespace"]
        self._paths: dict[str, Path] = {}
        self._memory: list[Path] = []
        self._living: dict[str, tuple[Object, float]] = {}
        """Written volumes: their source, and when to rewrite them (monotonic seconds)."""

    def prepare(self, pod: Object, identity: bool) -> None:
        """Make the missing volumes. Raises NotMounted, TemporaryError; may be called again after either."""
        self._pod = pod
        volumes = [(volume["name"], volume) for volume in pod["spec"].get("volumes") or []]
        if identity:
            token = {"path": IDENTITY_VOLUME, "audience": IDENTITY_AUDIENCE, "expirationSeconds": 86400}
            volumes.append((IDENTITY_VOLUME, {"projected": {"sources": [{"serviceAccountToken": token}]}}))
        for name, volume in volumes:
            if name not in self._paths:
                self._paths[name] = self._make(name, volume)

    def binds(self, container: Object, identity: bool, expand: Callable[[str], str]) -> list[Bind]:
        """Return the container's mounts, outer paths before inner ones."""
        mounts = list(container.get("volumeMounts") or [])
        if identity:
            mounts.append({"name": IDENTITY_VOLUME, "mountPath": IDENTITY_FOLDER, "readOnly": True})
        binds = []
        for mount in sorted(mounts, key=lambda row: row["mountPath"].rstrip("/").count("/")):
            source = self._paths[mount["name"]]
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr") or "")
            if sub_path:
                source = source / sub_path
                if ".." in Path(sub_path).parts:
                    raise NotMounted("a subPath must stay in its volume", seen=sub_path)
                if not source.exists():
                    source.mkdir(parents=True)
            read_only = bool(mount.get("readOnly")) or mount["name"] in self._living
            binds.append(Bind(source, mount["mountPath"], read_only))
        return binds

    def refresh(self) -> None:
        """Rewrite what is due. A volume that cannot be read now stays unchanged until the next time."""
        for name, (source, due) in list(self._living.items()):
            if time.monotonic() >= due:
                try:
                    self._write(name, source)
                except (ApiRefused, TemporaryError):
                    self._living[name] = (source, time.monotonic() + REFRESH_S)

    def remove(self) -> None:
        for path in self._memory:
            ctypes.CDLL(None).umount2(os.fsencode(path), MNT_DETACH)
        remove_tree(self._folder)

    def _make(self, name: str, volume: Object) -> Path:
        folder = self._folder / name
        if "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            if volume["emptyDir"].get("medium") == "Memory":
                self._mount_memory(folder, volume["emptyDir"].get("sizeLimit"))
            return folder
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return self._claim_folder(volume["persistentVolumeClaim"]["claimName"])
        if not any(kind in volume for kind in ("configMap", "secret", "downwardAPI", "projected")):
            kinds = ", ".join(key for key in volume if key != "name")
            raise NotMounted("this node has no such kind of volume", seen=f"{name}: {kinds}")
        self._write(name, volume)
        return folder

    def _mount_memory(self, folder: Path, limit: str | None) -> None:
        options = "mode=1777" + (f",size={size_bytes(limit)}" if limit else "")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), options.encode()) != 0:
            raise NotMounted("no memory volume", seen=os.strerror(ctypes.get_errno()))
        self._memory.append(folder)

    def _host_path(self, source: Object) -> Path:
        """Return the path on the machine's own disks for a path of the node."""
        host_path = os.path.normpath(source["path"])
        on_nvme = self._local_disk and (host_path == LOCAL_DISK or host_path.startswith(LOCAL_DISK + "/"))
        disk, sub_path = (
            (self._work / "nvme", host_path[len(LOCAL_DISK) :]) if on_nvme else (self._work / "host", host_path)
        )
        path = disk / sub_path.lstrip("/")
        kind = source.get("type") or ""
        if kind == "DirectoryOrCreate" or (kind == "" and not path.exists()):
            path.mkdir(parents=True, exist_ok=True)
        elif kind == "FileOrCreate":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif (kind == "Directory" and not path.is_dir()) or not path.exists():
            raise NotMounted("hostPath type check failed", seen=f"{host_path} is not a {kind}")
        return path

    def _claim_folder(self, claim: str) -> Path:
        try:
            claim_object = self._api.get(namespaced_path("persistentvolumeclaims", self._namespace, claim))
            name = claim_object["spec"].get("volumeName")
            if not name or (claim_object.get("status") or {}).get("phase") != "Bound":
                raise NotMounted("the claim is not bound", seen=claim)
            volume = self._api.get(f"/api/v1/persistentvolumes/{name}")["spec"]
        except ApiRefused as error:
            raise NotMounted("the claim cannot be read", seen=error) from error
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        csi = volume.get("csi") or {}
        if csi.get("driver") == mountpoint.DRIVER:
            token_request = {"path": "token", "audience": IDENTITY_AUDIENCE, "expirationSeconds": 3600}
            token = self._token(token_request)[0]["token"].decode()
            return self._s3_driver.mount(volume, token, self._folder / f"s3-{claim}")
        if csi.get("driver") != FSX_DRIVER:
            cure = f"use {FSX_DRIVER} or {mountpoint.DRIVER}"
            raise NotMounted("this node has no such storage driver", seen=csi.get("driver"), cure=cure)
        if not self._lustre():
            cure = "install lustre-client in the image, or at boot: EKS's own images lack it"
            raise NotMounted("mount.lustre: No such device; are the lustre modules loaded?", seen=claim, cure=cure)
        attributes = csi["volumeAttributes"]
        system, file_set = attributes["dnsname"].partition(".")[0], attributes["mountname"].partition("/")[2]
        folder = self._fsx_root / system
        if not folder.is_dir():
            raise NotMounted("the file system does not answer", seen=system, cure="wait until it is AVAILABLE")
        if not (folder / file_set).is_dir():
            raise NotMounted("mount.lustre: mount failed: No such file or directory", seen=f"{claim}: /{file_set}")
        return folder / file_set

    def _write(self, name: str, volume: Object) -> None:
        payload, life_s = self._payload(volume)
        write_atomically(self._folder / name, payload, _mode(volume))
        self._living[name] = (volume, time.monotonic() + life_s)

    def _payload(self, volume: Object) -> tuple[Payload, float]:
        """Return the files, and the seconds until they are due again."""
        if "projected" not in volume:
            return self._part(volume)
        files: Payload = {}
        life_s = REFRESH_S
        for source in volume["projected"].get("sources") or []:
            part, part_life_s = self._part(source)
            files |= part
            life_s = min(life_s, part_life_s)
        return files, life_s

    def _part(self, source: Object) -> tuple[Payload, float]:
        if token := source.get("serviceAccountToken"):
            return self._token(token)
        if downward := source.get("downwardAPI"):
            items = downward.get("items") or []
            return {part["path"]: field(self._pod, part["fieldRef"]["fieldPath"]).encode() for part in items}, REFRESH_S
        for plural, key in (("configmaps", "configMap"), ("secrets", "secret")):
            if projection := source.get(key):
                data = self._data(
                    plural, projection.get("name") or projection.get("secretName"), bool(projection.get("optional"))
                )
                return _select_items(data, projection), REFRESH_S
        raise NotMounted("this node cannot project that", seen=", ".join(source))

    def _data(self, plural: str, name: str, optional: bool) -> Payload:
        try:
            return object_data(self._api.get(namespaced_path(plural, self._namespace, name)), plural)
        except ApiRefused as error:
            if optional and error.status == NOT_FOUND:
                return {}
            raise NotMounted(f"{plural.removesuffix('s')} cannot be read", seen=error) from error

    def _token(self, projection: Object) -> tuple[Payload, float]:
        metadata = self._pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        life_s = int(projection.get("expirationSeconds") or 3600)
        spec: dict[str, Any] = {"boundObjectRef": bound, "expirationSeconds": life_s}
        spec["audiences"] = [projection["audience"]] if projection.get("audience") else []
        account = self._pod["spec"].get("serviceAccountName") or "default"
        path = namespaced_path("serviceaccounts", self._namespace, account) + "/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            token_answer = self._api.post(path, request)
        except ApiRefused as error:
            raise NotMounted("no service account token", seen=error) from error
        # A kubelet renews at 80 % of a token's lifetime.
        return {projection["path"]: token_answer["status"]["token"].encode()}, life_s * 0.8


def object_data(item: Object, plural: str) -> Payload:
    if plural == "secrets":
        return decode_values(item.get("data"))
    return {key: text.encode() for key, text in (item.get("data") or {}).items()} | decode_values(
        item.get("binaryData")
    )


def _select_items(data: Payload, source: Object) -> Payload:
    items = source.get("items")
    if not items:
        return data
    missing = [entry["key"] for entry in items if entry["key"] not in data]
    if missing and not source.get("optional"):
        raise NotMounted("references a missing key", seen=", ".join(missing))
    return {entry["path"]: data[entry["key"]] for entry in items if entry["key"] in data}


def _mode(volume: Object) -> int:
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        if mode := (volume.get(kind) or {}).get("defaultMode"):
            return int(mode)
    return 0o644


def write_atomically(folder: Path, payload: Mapping[str, bytes], mode: int) -> None:
    """Replace all files at once by renaming the kubelet's `..data` link: readers never see a mixture."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "..data"
    former = folder / os.readlink(link) if link.is_symlink() else None
    if former is not None and {
        str(p.relative_to(former)): p.read_bytes() for p in former.rglob("*") if p.is_file()
    } == dict(payload):
        return
    fresh = folder / f"..{time.time_ns()}"
    for path, content in payload.items():
        file = fresh / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
    fresh.mkdir(exist_ok=True)
    swap = folder / "..data_tmp"
    swap.symlink_to(fresh.name)
    swap.rename(link)
    tops = {path.split("/")[0] for path in payload}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"..data/{top}")
    for old in folder.iterdir():
        if not old.name.startswith("..") and old.name not in tops:
            old.unlink()
    if former is not None:
        remove_tree(former)


UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


def size_bytes(quantity: str) -> int:
    """ "64Mi" -> 67108864; raises ValueError for anything else."""
    for unit, factor in UNITS.items():
        if quantity.endswith(unit):
            return int(Decimal(quantity.removesuffix(unit)) * factor)
    return int(Decimal(quantity))
