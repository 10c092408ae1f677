"""Commands in a pod through the real API server, by kubectl and by our client."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from infra.cluster import transfer
from infra.cluster.execution import STDOUT, Containers, read_refusals
from infra.cluster.ranks import Member, members, running
from infra.errors import TemporaryError, UserError
from infra.folders import tools_dir
from infra.spec.names import NAMESPACE
from tests.worlds.nodelet_site import INSIDE, NodeletSite, pod

pytestmark = INSIDE

STAYS = "import time; print('up', flush=True); time.sleep(10**6)"
LABELS = {"bivouac.dev/campaign": "train", "bivouac.dev/attempt": "3"}
INDEX = "batch.kubernetes.io/job-completion-index"


@contextmanager
def reached(site: NodeletSite) -> Iterator[httpx2.Client]:
    """The API server with the certificate of the site's own client."""
    config = json.loads(site.world.control_planes["camp"].admin_kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode())
    for name in ("certificate", "key"):
        (site.work / f"client-{name}").write_bytes(base64.b64decode(user[f"client-{name}-data"]))
    tls.load_cert_chain(site.work / "client-certificate", site.work / "client-key")
    with httpx2.Client(base_url=server["server"], verify=tls, trust_env=False, timeout=30) as http:
        http.event_hooks = {"response": [read_refusals]}
        yield http


def kubectl(site: NodeletSite, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    argv = [str(tools_dir() / "kubectl"), f"--kubeconfig={site.world.control_planes['camp'].admin_kubeconfig}"]
    return subprocess.run([*argv, f"--cache-dir={site.work}", *words], input=given, capture_output=True)


def test_kubectl_and_our_client_run_commands_through_the_api_server(
    site: NodeletSite, image: str, tmp_path: Path
) -> None:
    stays = pod("stays", image, STAYS, labels=LABELS)
    stays["metadata"] |= {"namespace": NAMESPACE, "annotations": {INDEX: "1"}}
    site.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = ("get", "serviceaccount", "default", f"--namespace={NAMESPACE}", "--ignore-not-found")
    site.until(lambda: site.kubectl(*account))
    site.apply(stays)
    site.until(lambda: b"up" in kubectl(site, "logs", "stays", f"--namespace={NAMESPACE}").stdout)
    asked = ("exec", "-i", "stays", f"--namespace={NAMESPACE}", "--", "sh", "-c", "cat; echo wrong >&2; exit 42")
    theirs = kubectl(site, *asked, given=b"in\x00\xff\n")
    assert (theirs.returncode, theirs.stdout) == (42, b"in\x00\xff\n"), theirs.stderr
    assert theirs.stderr.startswith(b"wrong\n")
    missing = kubectl(site, "exec", "stays", f"--namespace={NAMESPACE}", "--", "no-such-program")
    assert missing.returncode == 1 and b"no-such-program" in missing.stderr, missing.stderr

    with reached(site) as http:
        found = members(http, "train")
        assert found == [Member(3, 1, "stays", "main", "Running", False)]
        assert running(found, 3, 2, "train").pod == "stays"
        with pytest.raises(UserError, match="no such rank"):
            running(found, 4, 2, "train")
        with pytest.raises(UserError, match=r"does not run.*pod is gone"):
            running(found, 1, 2, "train")
        out: list[bytes] = []
        containers = Containers(http)
        with containers.running("stays", "main", ["sh", "-c", "cat; exit 41"]) as run:
            run.execution.write(b"much" * 2**20)
            run.execution.end_input()
            assert run.execution.run(lambda channel, data: out.append(data) if channel == STDOUT else None) == 41
        assert b"".join(out) == b"much" * 2**20
        (tmp_path / "large").write_bytes(b"0123456789abcdef" * 2**18)
        transfer.into(containers, found[0], str(tmp_path / "large"), "/tmp/large", Silent())
        transfer.out_of(containers, found[0], "/tmp/large", str(tmp_path / "again"), Silent())
        assert (tmp_path / "again").read_bytes() == (tmp_path / "large").read_bytes()
        with pytest.raises(UserError, match="gone"), containers.running("never-was", "main", ["true"]):
            pass
        site.kubectl("delete", "pod", "stays", f"--namespace={NAMESPACE}", "--grace-period=0", "--force")
        with pytest.raises((UserError, TemporaryError)), containers.running("stays", "main", ["true"]):
            pass


class Silent:
    def of(self, total: int) -> None: ...
    def passed(self, count: int) -> None: ...
    def note(self, text: str) -> None: ...
