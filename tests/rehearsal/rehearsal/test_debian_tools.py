"""Tools of Debian are unpacked without root, with the libraries and files that they need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.errors import PermanentError
from infra.toolchain.ensure import ensure, select


def test_a_tool_of_debian_is_unpacked_without_root_with_its_other_files(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apt-get` and `dpkg-deb` are replaced by what they do: a package in the folder, and its files below another."""
    root, programs = tmp_path / "root", tmp_path / "programs"
    (root / "usr/bin").mkdir(parents=True), programs.mkdir()
    for name in ("prometheus", "promtool"):
        (root / f"usr/bin/{name}").write_text(f"#!/bin/sh\necho {name}, version 2.42.0+ds\n")
        (root / f"usr/bin/{name}").chmod(0o755)
    scripts = {
        "apt-get": 'case "$*" in *State::Lists*download*) : > prometheus_9_all.deb ;; *update) ;; *) exit 100 ;; esac',
        "dpkg-deb": f'/bin/cp -r {root} "$3"',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("BIVOUAC_DOWNLOAD_PROMETHEUS", "")
    monkeypatch.setenv("BIVOUAC_DOWNLOAD_ALERTMANAGER", "")
    (program,) = ensure(["prometheus"], tools=tools)
    assert (program.version, program.origin) == ("2.42.0+ds", "unpacked"), "by lists of its own: the system's are none"
    assert "promtool" in (tools / "promtool").read_text() and os.access(tools / "promtool", os.X_OK)
    (programs / "apt-get").unlink()
    with pytest.raises(PermanentError, match=r"apt-get is not installed.*Debian or Ubuntu"):
        ensure(["alertmanager"], tools=tools)


def test_a_tool_of_several_packages_is_optional_and_brings_its_architectures_libraries(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apt-get` and `dpkg-deb` are replaced as above; each package brings a file with its own name."""
    (ibsim,) = select(["ibsim"])
    assert ibsim.debian is not None and ibsim not in select([]), "neither `make setup` nor a site needs it"
    names = (ibsim.debian.name, *ibsim.debian.also)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    root, programs = tmp_path / "root", tmp_path / "programs"
    programs.mkdir()
    members = [ibsim.debian.member, *ibsim.debian.share.values()]
    for member in members:
        file = root / member.format(multiarch="aarch64-linux-gnu")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(member)
        file.chmod(0o755)
    scripts = {
        "apt-get": f'for word in "$@"; do case $word in {"|".join(names)}) : > "$word"_9_arm64.deb ;; esac; done',
        "dpkg-deb": f'echo "$2" >> {tmp_path}/unpacked; /bin/cp -r {root}/. "$3"',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))

    (program,) = ensure(["ibsim"], tools=tools)

    assert (program.version, program.origin) == (ibsim.version, "unpacked")
    assert {Path(line).name for line in (tmp_path / "unpacked").read_text().split()} == {
        f"{n}_9_arm64.deb" for n in names
    }
    share = tools.parent / "share" / "ibsim"
    assert {str(path.relative_to(share)) for path in share.rglob("*.so*")} == {
        name for name in ibsim.debian.share if ".so" in name
    }
    assert os.access(share / "opensm", os.X_OK)
