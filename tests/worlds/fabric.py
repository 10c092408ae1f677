"""An InfiniBand fabric without InfiniBand: Debian's ibsim on a generated fat tree, and the real tools on it.

Each adapter of a node is one channel adapter of the fabric with the node's name in its description, as on real nodes.
ibsim's sockets are abstract Unix sockets: nothing listens on the network. ibsim calls every adapter `ibsim0`; a node
of the world calls its own `mlx5_0`, `mlx5_1`, … .
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra.folders import share_dir
from infra.toolchain.ensure import ensure
from tests.waiting import HUNG_S, until
from trainer.health.looking import CannotLook, Output

WIDE, HDR = "w=11", "e=7"
NARROW, EDR = "w=3", "e=3"
"""A link's options in a net file: 4X where 12X is supported, and 25 Gbit/s per lane where 53 are."""
_TOOLS = ("ibstat", "ibnetdiscover", "iblinkinfo", "perfquery")
_COPY_SYSFS = """
import ctypes, os, shutil, sys
ctypes.CDLL(None).opendir(b"/sys/class/infiniband")
shutil.copytree(f"sys-{os.getpid()}/sys/class/infiniband", sys.argv[1])
"""


@dataclass
class FatTree:
    """Nodes below leaves below spines. A change names an adapter as (node, adapter), or a cable by its two switches."""

    nodes: int
    leaves: int
    spines: int
    adapters: int = 2
    cut: set[tuple[int, int]] = field(default_factory=set)
    cut_uplinks: set[tuple[int, int]] = field(default_factory=set)
    """(leaf, spine)."""
    slow: dict[tuple[int, int], str] = field(default_factory=dict)
    """Adapter -> its cable's options."""
    missing: set[tuple[int, int]] = field(default_factory=set)
    """Adapters that are not in their nodes at all."""
    moved: dict[int, int] = field(default_factory=dict)
    """Node -> a leaf that is not its own."""
    rails: bool = False
    """Adapter k of all nodes is at a leaf of its own; `leaves` then is a multiple of `adapters`."""

    def leaf(self, node: int, adapter: int) -> int:
        if self.rails:
            groups = self.leaves // self.adapters
            return node * groups // self.nodes * self.adapters + adapter
        return self.moved.get(node, node * self.leaves // self.nodes)

    def net_file(self) -> str:
        """Return the file that ibsim reads: each element, and its ports with what is at their other ends."""
        lines_by_leaf: dict[int, list[str]] = {leaf: [] for leaf in range(self.leaves)}
        ends: list[str] = []
        for node in range(self.nodes):
            for adapter in range(self.adapters):
                if (node, adapter) in self.missing:
                    continue
                ends.append(f'Ca 1 "node-{node:03d}-{adapter}" # "node-{node:03d} mlx5_{adapter}"')
                if (node, adapter) not in self.cut:
                    options = self.slow.get((node, adapter), f"{WIDE} s=7 {HDR}")
                    leaf = self.leaf(node, adapter)
                    lines = lines_by_leaf[leaf]
                    lines.append(f'[{len(lines) + 1}] "node-{node:03d}-{adapter}"[1] {options}')
                    ends.append(f'[1] "leaf-{leaf:02d}"[{len(lines)}] {options}')
                ends.append("")
        first_uplink = max(map(len, lines_by_leaf.values())) + 1
        uplinks = [(leaf, spine) for leaf in range(self.leaves) for spine in range(self.spines)]
        uplinks = [pair for pair in uplinks if pair not in self.cut_uplinks]
        ports = first_uplink + self.spines
        switches: list[str] = []
        for leaf, lines in lines_by_leaf.items():
            switches += [f'Switch {ports} "leaf-{leaf:02d}"', *lines]
            switches += [f'[{first_uplink + s}] "spine-{s:02d}"[{at + 1}] {WIDE} s=7 {HDR}'
                         for at, s in uplinks if at == leaf] + [""]  # fmt: skip
        for spine in range(self.spines):
            switches.append(f'Switch {self.leaves} "spine-{spine:02d}"')
            switches += [f'[{leaf + 1}] "leaf-{leaf:02d}"[{first_uplink + s}] {WIDE} s=7 {HDR}'
                         for leaf, s in uplinks if s == spine] + [""]  # fmt: skip
        # The first element must have a cable: ibsim attaches there who names no place.
        return "\n".join([*switches, *ends]) + "\n"

    def names(self) -> list[str]:
        return [f"node-{node:03d}" for node in range(self.nodes)]


class SimulatedFabric:
    """A running ibsim."""

    def __init__(self, tree: FatTree, folder: Path, socket: str) -> None:
        self.tree, self.folder, self.socket = tree, folder, socket
        self.share = share_dir("ibsim")
        self.commands: list[tuple[str, ...]] = []

    def run(self, *command: str, place: str) -> Output:
        """Run a tool of InfiniBand at an adapter, such as `node-003-1`."""
        libraries = self.share / "lib"
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(libraries), "LD_PRELOAD": str(libraries / "libumad2sim.so"),
            "IBSIM_SOCKNAME": self.socket, "SIM_HOST": place, "OSM_CACHE_DIR": str(self.folder),
            "OSM_TMP_DIR": str(self.folder), "PATH": f"{self.share}:{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=HUNG_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Output(done.returncode, done.stdout, done.stderr)

    def manage(self) -> None:
        """Let the subnet manager make every connected port active, and end."""
        at = next(f"node-{n:03d}-0" for n in range(self.tree.nodes) if not {(n, 0)} & self.tree.cut)
        done = self.run("opensm", "-o", "-g", "0x0", "-f", str(self.folder / "osm.log"), place=at)
        assert "Entering MASTER state" in done.text, done

    def adapters(self, node: int) -> list[int]:
        return [k for k in range(self.tree.adapters) if (node, k) not in self.tree.missing]

    def sysfs(self, node: int, target: Path) -> Path:
        """Copy the kernel's files of a node's adapters, as the simulator writes them for the tools."""
        for adapter in self.adapters(node):
            part = self.folder / f"part-{uuid.uuid4().hex}"
            done = self.run(sys.executable, "-c", _COPY_SYSFS, str(part), place=f"node-{node:03d}-{adapter}")
            assert done.code == 0, done.errors
            shutil.copytree(part / "ibsim0", target / f"mlx5_{adapter}")
        return target

    def look(self, node: int) -> Look:
        return Look(self, node)


class Look:
    """What `trainer.health.looking.look` is on a node of the fabric: the real tools, and no other program."""

    def __init__(self, fabric: SimulatedFabric, node: int) -> None:
        self.fabric, self.node = fabric, node

    def __call__(self, *command: str, timeout_s: float = 30.0) -> Output:
        tool, *rest = command
        if tool not in _TOOLS:
            raise CannotLook(f"there is no {tool} in the image")
        self.fabric.commands.append(command)
        if tool == "ibstat":
            outputs = [(k, self._run(tool, *rest, adapter=k)) for k in self.fabric.adapters(self.node)]
            texts = [output.text.replace("ibsim0", f"mlx5_{k}") for k, output in outputs]
            return Output(max(output.code for _, output in outputs), "".join(texts), "")
        adapter = 0
        if "-C" in rest:
            adapter = int(rest[rest.index("-C") + 1].removeprefix("mlx5_"))
            rest[rest.index("-C") + 1] = "ibsim0"
        return self._run(tool, *rest, adapter=adapter)

    def _run(self, *command: str, adapter: int) -> Output:
        return self.fabric.run(*command, place=f"node-{self.node:03d}-{adapter}")


@contextmanager
def simulated(tree: FatTree, folder: Path, managed: bool = True) -> Iterator[SimulatedFabric]:
    """Run ibsim on the tree in a folder of its own; without `managed` no subnet manager has ever run."""
    (program,) = ensure(["ibsim"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net").write_text(tree.net_file())
    socket = f"fabric-{uuid.uuid4().hex}"
    environment = os.environ | {"IBSIM_SOCKNAME": socket, "LD_LIBRARY_PATH": str(share_dir("ibsim") / "lib")}
    with (folder / "ibsim.log").open("w") as log:
        process = subprocess.Popen(
            [program.path, "-s", "-n", "net"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: process.poll() is not None or f"@{socket}:ctl" in Path("/proc/net/unix").read_text())
            assert process.poll() is None, (folder / "ibsim.log").read_text()
            fabric = SimulatedFabric(tree, folder, socket)
            if managed:
                fabric.manage()
            yield fabric
        finally:
            process.kill()
            process.wait()
