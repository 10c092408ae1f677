"""A machine that loses its power: the last file of this folder, since the site has a node less then."""

from __future__ import annotations

import time
from pathlib import Path

from tests.rehearsal.rehearsal.nodelet.test_machines import ticking
from tests.worlds.nodelet_site import INSIDE, NodeletSite

pytestmark = INSIDE


def processes() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines


def test_power_loss_ends_the_pods_too(site: NodeletSite, image: str) -> None:
    name = site.two_nodes()[0]
    log = ticking(site, image, "lost", name)
    machine = site.machine_of(name)
    asked = time.monotonic()
    machine.kill()
    assert not machine.alive() and time.monotonic() - asked < 20, "a grace would be 30 s"
    text = log.read_text()
    time.sleep(0.2)
    assert log.read_text() == text
    assert not [line for line in processes() if f"{name}'; import time" in line]
