"""Tests that need Linux namespaces of their own: `pytestmark = pytest.mark.inside("net", "pid")`.

A second pytest collects the same file behind `unshare`, as root there, with mounts of its own in any case. It runs one
test whenever the first one comes to it and sends back what became of it, so that each has its own result, text and
duration. With `shared=True` the files of a folder share one such process, and with it the fixtures of scope session.
`tools=("kueue",)` names tools on request: they are got outside, since a network of one's own reaches no source.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from infra.toolchain.ensure import ensure
from tests.root import ROOT
from tests.waiting import HUNG_S

CHANNEL = "BIVOUAC_TESTS_INSIDE"
"""Set inside: the number of the socket to the outer pytest."""


class Inside:
    """The outer end: a pytest in its namespaces."""

    def __init__(self, files: list[Path], namespaces: tuple[str, ...]) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 it lives as long as the process
        self.channel, theirs = socket.socketpair()
        self.answers = self.channel.makefile()
        unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        unshare += [f"--{name}" for name in namespaces]
        unshare += ["--fork", "--mount-proc", "--kill-child"] if "pid" in namespaces else []
        # `-m ""` takes back what the project deselects: the outer pytest has chosen.
        inner = [sys.executable, "-m", "pytest", "-m", "", "-p", "no:cacheprovider", "-p", __name__, *map(str, files)]
        with theirs:
            self.process = subprocess.Popen(
                [*unshare, *inner], cwd=ROOT, env={**os.environ, CHANNEL: str(theirs.fileno())},
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, pass_fds=(theirs.fileno(),),
            )  # fmt: skip

    def ask(self, name: str) -> list[dict[str, Any]]:
        """Return the reports of one test; none of "", after which all fixtures are torn down and the process ends.

        The test fails where the process ends without an answer, or has not collected it.
        """
        with suppress(BrokenPipeError):
            self.channel.sendall(f"{name}\n".encode())
        ready, _, _ = select.select([self.channel], [], [], HUNG_S)
        line = self.answers.readline() if ready else ""
        if not line:
            self.end()
            self.log.seek(0)
            pytest.fail(f"no answer from inside\n{self.log.read()[-12000:]}", pytrace=False)
        reports: list[dict[str, Any]] = json.loads(line)
        if name and not reports:
            pytest.fail(f"{name} is not collected inside", pytrace=False)
        return reports

    def close(self) -> None:
        try:
            self.ask("")
        finally:
            self.end()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class InsideTest(pytest.Item):
    """Stands in the outer pytest for a test that runs inside."""

    def __init__(self, *, test: pytest.Item, files: list[Path], **more: Any) -> None:
        super().__init__(**more)
        self.test, self.files = test, files
        self.own_markers.extend(test.own_markers)
        self.keywords.update(test.keywords)

    def reportinfo(self) -> Any:
        return self.test.reportinfo()

    def runtest(self) -> None:
        loaded = self.config.hook.pytest_report_from_serializable
        reports = [loaded(config=self.config, data=one) for one in self._process().ask(self.nodeid)]
        for title, text in reports[-1].sections:
            self.add_report_section("inside", title.removeprefix("Captured "), text)
        for report in reports:
            if report.skipped:
                pytest.skip(str(report.longrepr))
            if report.failed:
                pytest.fail(f"in its {report.when}:\n{report.longreprtext}", pytrace=False)

    def _process(self) -> Inside:
        """Return the running process of the file or folder, else a new one, which ends with that."""
        mark, scope = _asked(self)
        known = scope.stash.get(PROCESS, None)
        if known is None or known.process.poll() is not None:
            if tools := mark.kwargs.get("tools"):
                ensure(tools)
            known = scope.stash[PROCESS] = Inside(self.files, mark.args)
            scope.addfinalizer(known.close)
        return known


PROCESS = pytest.StashKey[Inside]()


def _asked(item: pytest.Item) -> tuple[pytest.Mark, pytest.Collector]:
    """Return the mark of a test, and the file or folder that shares its process."""
    mark = item.get_closest_marker("inside")
    scope = item.getparent(pytest.Directory if mark and mark.kwargs.get("shared") else pytest.Module)
    assert mark is not None and scope is not None, item.nodeid
    return mark, scope


class Reports:
    """The inner end: sends what became of each test."""

    def __init__(self, channel: socket.socket, config: pytest.Config) -> None:
        self.channel, self.config = channel, config
        self.names = iter(channel.makefile())
        self.reports = list[Any]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        dumped = self.config.hook.pytest_report_to_serializable
        self.reports.append(dumped(config=self.config, report=report))

    def send(self) -> None:
        self.channel.sendall(f"{json.dumps(self.reports)}\n".encode())
        self.reports.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Answers the last time when every fixture is torn down; where one fails, there is no answer."""
        yield
        self.send()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHANNEL in os.environ:
        return
    files = dict[pytest.Collector, list[Path]]()
    for number, item in enumerate(items):
        if item.get_closest_marker("inside") and item.parent:
            together = files.setdefault(_asked(item)[1], [])
            together += [item.path] if item.path not in together else []
            items[number] = InsideTest.from_parent(item.parent, name=item.name, test=item, files=together)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Inside: run each test that the outer pytest names, until it names none."""
    if CHANNEL not in os.environ:
        return None
    channel = socket.socket(fileno=int(os.environ[CHANNEL]))
    channel.set_inheritable(False)
    session.config.pluginmanager.register(reports := Reports(channel, session.config))
    tests = {item.nodeid: item for item in session.items}
    for name in iter(lambda: next(reports.names, "").strip(), ""):
        if test := tests.get(name):
            # Its file's fixtures stay for the others; those of another file end before it.
            session._setupstate.teardown_exact(test)
            others = [item for item in session.items if item is not test]
            following = next((one for one in others if one.parent is test.parent), next(iter(others), None))
            session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        reports.send()
    return True
