"""`bivouac dashboard [NAME]`: a campaign's dashboards in a browser, served on loopback, or all campaigns side by side;
or as Grafana's JSON, in a folder."""

from __future__ import annotations

import json
import os
import socket
from functools import partial
from pathlib import Path

from rich.console import Console

from infra import target
from infra.cli.look.panels import PanelServer
from infra.cli.look.series import all_campaigns, series_of
from infra.cli.options import stderr
from infra.console.plain_console import say
from infra.errors import UserError
from infra.monitoring.dashboards import dashboards, grafana_json

_LISTENER = "BIVOUAC_LISTENER"
"""Set for the same command inside a site: the number of the socket that it inherits."""
_LOOPBACK = "127.0.0.1"


def dashboard_command(campaign: str | None, region: str, port: int, grafana: Path | None, console: Console) -> int:
    """Serve until a signal ends it; with `grafana` write the files instead. Raises `UserError` for a folder that cannot
    be written, a port in use, or where no series are kept."""
    if grafana is not None:
        return _write(grafana, console)
    note = partial(say, stderr)
    with _listener(port) as listener:
        if campaign is not None:
            target.enter_where(campaign)
        listener.set_inheritable(False)
        os.environ.pop(_LISTENER, None)
        series = series_of(campaign, region, note) if campaign is not None else all_campaigns(region, note).opened()
        with series as source:
            server = PanelServer(listener, campaign, source)
            say(console, f"{server.url} shows {server.title}; Ctrl-C ends it")
            console.file.flush()
            server.serve_forever()
    return 0


def _listener(port: int) -> socket.socket:
    """Return a socket of this machine's loopback. A site has a network of its own, which no browser reaches: the
    command that goes on inside accepts on the socket that it inherits."""
    if number := os.environ.pop(_LISTENER, ""):
        return socket.socket(fileno=int(number))
    try:
        listener = socket.create_server((_LOOPBACK, port))
    except OSError as error:
        cure = "give another --port; 0 takes a free one"
        raise UserError("the port cannot be listened on", seen=f"{port}: {error.strerror}", cure=cure) from error
    listener.set_inheritable(True)
    os.environ[_LISTENER] = str(listener.fileno())
    return listener


def _write(folder: Path, console: Console) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in dashboards():
            (folder / f"bivouac-{name}.json").write_text(json.dumps(grafana_json(name), indent=1) + "\n")
    except OSError as error:
        fact = f"{error.filename}: {error.strerror}"
        raise UserError("the dashboards cannot be written", seen=fact, cure="choose a folder of yours") from error
    say(console, f"{len(dashboards())} dashboards are in {folder}; Grafana imports each, and asks for its Prometheus")
    return 0
