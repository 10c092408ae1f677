"""The tools, one entry each: version, official release, and the pinned Go module to build from."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

MODULES = Path(__file__).with_name("modules")
KUBERNETES, ETCD, PULUMI, JOBSET, MPI_OPERATOR = "1.36.3", "3.6.7", "3.250.0", "0.10.1", "0.8.2"
LANGUAGE = "3.60.0"


@dataclass(frozen=True)
class Publisher:
    """A project's download site. The environment may name a mirror; an empty value forbids downloads from it."""

    variable: str
    url: str

    def base(self, environment: Mapping[str, str] = os.environ) -> str:
        return environment.get(self.variable, self.url).rstrip("/")


@dataclass(frozen=True)
class ToolRelease:
    """Templates over {version} and {arch}, relative to the publisher's base."""

    publisher: Publisher
    file: str
    checksums: str
    member: str = ""
    """Path of the executable in a tar archive; empty if the file is the executable."""
    version: str = ""
    """Version of the release, if it differs from the module's."""
    share: tuple[str, ...] = ()
    """Paths in the tar archive of the files for the tool's `share`."""
    arches: Mapping[str, str] = field(default_factory=lambda: {"amd64": "amd64", "arm64": "arm64"})


@dataclass(frozen=True)
class Tool:
    name: str
    version: str
    accepts: str
    """Prefix of acceptable versions on PATH."""
    module: str
    """Folder below modules/."""
    package: str
    usual_build: timedelta
    """With Go 1.26 on two cores and an empty build cache."""
    version_argv: tuple[str, ...] = ()
    """Arguments that print the version; empty if the executable has none: then its Go build information is read."""
    flags: str = ""
    """Additional linker flags, for version stamps."""
    release: ToolRelease | None = None
    go_module: str = ""
    """Go module of the files in `share` and of the version in the build information."""
    share: tuple[str, ...] = ()
    """Files of `go_module` below `share_root` that are needed beside the executable."""
    share_root: str = ""
    beside: bool = False
    """The shared files must be in the executable's own folder: they are linked there."""


DL_K8S = Publisher("BIVOUAC_DOWNLOAD_KUBERNETES", "https://dl.k8s.io/release")
GET_PULUMI = Publisher("BIVOUAC_DOWNLOAD_PULUMI", "https://get.pulumi.com/releases/sdk")
ETCD_RELEASES = Publisher("BIVOUAC_DOWNLOAD_ETCD", "https://github.com/etcd-io/etcd/releases/download")


def _kubernetes(name: str, minutes: float, *version_argv: str) -> Tool:
    version = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.split(".")
    return Tool(
        name=name,
        version=KUBERNETES,
        accepts=f"{major}.{minor}.",
        module="kubernetes",
        package=f"k8s.io/kubernetes/cmd/{name}",
        usual_build=timedelta(minutes=minutes),
        version_argv=version_argv or ("--version",),
        flags=f"-X {version}.gitVersion=v{KUBERNETES} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}",
        release=ToolRelease(
            DL_K8S, f"v{{version}}/bin/linux/{{arch}}/{name}", f"v{{version}}/bin/linux/{{arch}}/{name}.sha256"
        ),
    )


TOOLS: tuple[Tool, ...] = (
    Tool(
        name="etcd",
        version=ETCD,
        accepts="3.6.",
        module="etcd",
        package="go.etcd.io/etcd/server/v3",
        usual_build=timedelta(minutes=1),
        version_argv=("--version",),
        release=ToolRelease(
            ETCD_RELEASES,
            "v{version}/etcd-v{version}-linux-{arch}.tar.gz",
            "v{version}/SHA256SUMS",
            "etcd-v{version}-linux-{arch}/etcd",
        ),
    ),
    _kubernetes("kube-apiserver", 6),
    _kubernetes("kube-controller-manager", 2),
    _kubernetes("kube-scheduler", 1),
    _kubernetes("kubectl", 1, "version", "--client", "--output=yaml"),
    Tool(
        name="pulumi",
        version=PULUMI,
        accepts=PULUMI,
        module="pulumi",
        package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        usual_build=timedelta(minutes=8),
        version_argv=("version",),
        flags=f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{PULUMI}",
        release=ToolRelease(
            GET_PULUMI,
            "pulumi-v{version}-linux-{arch}.tar.gz",
            "pulumi-{version}-checksums.txt",
            "pulumi/pulumi",
            arches={"amd64": "x64", "arm64": "arm64"},
        ),
    ),
    # Only for `pulumi` typed by hand: the driver's programs are inline. This is the newest release in which the
    # language host is part of a Go module that the proxy serves; it works with today's engine and SDK.
    Tool(
        name="pulumi-language-python",
        version=LANGUAGE,
        accepts="3.",
        module="pulumi-language",
        package="github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python",
        usual_build=timedelta(seconds=45),
        release=ToolRelease(
            GET_PULUMI,
            "pulumi-v{version}-linux-{arch}.tar.gz",
            "pulumi-{version}-checksums.txt",
            "pulumi/pulumi-language-python",
            version=PULUMI,
            share=("pulumi/pulumi-language-python-exec",),
            arches={"amd64": "x64", "arm64": "arm64"},
        ),
        go_module="github.com/pulumi/pulumi/sdk/v3",
        share_root="python/cmd",
        share=("pulumi-language-python-exec",),
        beside=True,
    ),
    # The projects of the next two publish images and manifests, but no executables.
    Tool(
        name="jobset-controller",
        version=JOBSET,
        accepts=JOBSET,
        module="jobset",
        package="sigs.k8s.io/jobset",
        usual_build=timedelta(minutes=4),
        go_module="sigs.k8s.io/jobset",
        share_root="config/components",
        share=(
            "crd/bases/jobset.x-k8s.io_jobsets.yaml",
            "rbac/role.yaml",
            "webhook/manifests.yaml",
            "webhook/patches/mutating-patch.yaml",
            "webhook/patches/validating-patch.yaml",
        ),
    ),
    Tool(
        name="mpi-operator",
        version=MPI_OPERATOR,
        accepts=MPI_OPERATOR,
        module="mpi-operator",
        package="github.com/kubeflow/mpi-operator/cmd/mpi-operator",
        usual_build=timedelta(minutes=4),
        go_module="github.com/kubeflow/mpi-operator",
        share_root="manifests/base",
        share=("kubeflow.org_mpijobs.yaml",),
    ),
)


def architecture() -> str:
    """Return Go's name of this machine's architecture, or the machine's own name if unknown."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
