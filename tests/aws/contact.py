"""One campaign from `check` to its certificate by the product's command line, with a node or its driver killed in the
middle: a driver that is killed does not come back, and the account ends the campaign alone.

The same body runs on AWS and in a rehearsal: it knows `bivouac` and, inside the campaign's shell, `aws`.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from infra.spec.names import buckets
from tests.aws.transcript import Transcript

KILLED = "EC2 was told to terminate"
LEFT = "the driver was killed, for good"
ENDED = "the account has ended it"
NO_CLOSER = "no closer ends campaigns"
"""Of the driver's note where CodeBuild runs no builds: it is the one that must end the campaign."""


class NotAgreed(Exception):
    """Nobody said that the money may be spent; nothing was made."""


@dataclass
class Contact:
    """A campaign and what was said on its way."""

    name: str
    spec: Path
    node_type: str
    """EC2 instance type of the GPU nodes."""
    bivouac: Sequence[str]
    """The command's first words."""
    environment: Mapping[str, str]
    transcript: Transcript
    online: bool = True
    """Ask AWS before anything is made; a rehearsal's emulated AWS does not exist yet."""
    pause_s: float = 10.0
    detach: bool = False
    """Kill the driver in place of a node."""
    ends_within_s: float = 0.0
    """With `detach`, time for the account to end the campaign after the kill; then `down` does, and the test fails."""
    said: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        self.said.append(text)
        self.transcript.write(text)

    def run(self, *words: str, show: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*self.bivouac, *words], env=dict(self.environment), capture_output=True, text=True)
        if show or done.returncode:
            self.tell(f"$ bivouac {' '.join(words)}\n{done.stdout}{done.stderr}exit {done.returncode}")
        return done

    def aws(self, *words: str) -> tuple[Any, str]:
        """Return the answer of `aws` in the campaign's shell, or None and the reason why there is none."""
        done = self.run("shell", self.name, "--", "aws", *words, "--output", "json", show=False)
        if done.returncode:
            return None, done.stderr.strip()
        return json.loads(done.stdout or "{}"), ""

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [*self.bivouac, "status", self.name, "--json"], env=dict(self.environment), capture_output=True, text=True
        )
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            return {}

    def nodes(self) -> list[str]:
        """The campaign's running GPU nodes, as EC2 lists them by tag and type."""
        filters = (
            f"Name=tag:bivouac:campaign,Values={self.name}",
            f"Name=instance-type,Values={self.node_type}",
            "Name=instance-state-name,Values=running",
        )
        told, _ = self.aws("ec2", "describe-instances", "--filters", *filters)
        return sorted(
            instance["InstanceId"] for group in (told or {}).get("Reservations", ()) for instance in group["Instances"]
        )

    def certificate(self) -> dict[str, Any]:
        """The record's own, wherever it was written."""
        spec = yaml.safe_load(self.spec.read_text())
        bucket = buckets(spec["account"], spec["region"]).state
        told, refused = self.aws("s3", "cp", "--quiet", f"s3://{bucket}/campaigns/{self.name}/certificate.json", "-")
        assert told is not None, refused
        return dict(told)


def first_contact(contact: Contact, agreed: Callable[[str, str], bool]) -> dict[str, Any]:
    """Check, plan, run, kill once a checkpoint is committed, and tear down whatever happened.

    `agreed(planned, at most)` says whether so many USD may be spent; raises `NotAgreed` before anything is made.
    Return the status at the end.
    """
    checked = contact.run("check", str(contact.spec), *(("--online",) if contact.online else ()))
    if checked.returncode:
        raise NotAgreed("the spec does not pass: see the transcript")
    totals = json.loads(contact.run("plan", str(contact.spec), "--json", show=False).stdout)["totals"]
    planned, most = (f"{totals[name]['value']:.2f}" for name in ("usd", "usd_at_deadline"))
    contact.tell(f"planned: {planned} USD, at most {most} USD at the deadline")
    if not agreed(planned, most):
        raise NotAgreed(f"{planned} USD, at most {most}")
    code: int | None = None
    try:
        code = _train(contact)
    finally:
        # Of a campaign that is over it changes nothing on AWS; of a rehearsal it removes the site, which is looked at.
        # Where nobody was to come back, nobody does.
        ended = any(line.startswith(ENDED) for line in contact.said)
        if not ended and (code != 0 or contact.online):
            contact.run("down", contact.name, "--yes")
    return contact.status()


def _train(contact: Contact) -> int:
    """Run the campaign, kill a node, and return the exit code."""
    with subprocess.Popen(
        [*contact.bivouac, "run", str(contact.spec), "--yes"],
        env=dict(contact.environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        reader = _Reader(contact, run)
        try:
            while run.poll() is None and not _committed(contact.status()):
                time.sleep(contact.pause_s)
            if run.poll() is None:
                (_kill_driver if contact.detach else _kill)(contact, run)
            run.wait()
        finally:
            if run.poll() is None:
                run.terminate()
            reader.join()
        contact.tell(f"bivouac run ended with exit code {run.returncode}")
        code = run.returncode
    if any(line.startswith(LEFT) for line in contact.said):
        _await_the_end(contact)
    return code


def _committed(status: dict[str, Any]) -> bool:
    return bool((status.get("live") or {}).get("committed_step"))


def _kill_driver(contact: Contact, run: subprocess.Popen[str]) -> None:
    if any(NO_CLOSER in line for line in contact.said):
        contact.tell("the driver is not killed: this account has no closer")
        return
    run.kill()
    contact.tell(f"{LEFT}: process {run.pid}")


def _await_the_end(contact: Contact) -> None:
    until = time.monotonic() + contact.ends_within_s
    while time.monotonic() < until:
        if contact.status().get("stage") == "ended":
            contact.tell(ENDED)
            return
        time.sleep(contact.pause_s)
    contact.tell(f"nobody has ended it within {contact.ends_within_s:.0f} s")


def _kill(contact: Contact, run: subprocess.Popen[str]) -> None:
    nodes = contact.nodes()
    if not nodes:
        contact.tell("no running GPU node was found to kill")
        return
    contact.tell(f"$ aws ec2 terminate-instances --instance-ids {nodes[-1]}")
    _, refused = contact.aws("ec2", "terminate-instances", "--instance-ids", nodes[-1])
    contact.tell(refused or f"{KILLED} {nodes[-1]}")


class _Reader:
    """Copies what a process says into the transcript while it says it."""

    def __init__(self, contact: Contact, process: subprocess.Popen[str]) -> None:
        self._thread = threading.Thread(target=self._copy, args=(contact, process), daemon=True)
        self._thread.start()

    def _copy(self, contact: Contact, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            contact.tell(line.rstrip("\n"))

    def join(self) -> None:
        self._thread.join()
