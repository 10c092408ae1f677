"""Send a notice by a route of `notify.routes`, through apprise, which knows the form of each service.

https://github.com/caronc/apprise/wiki. No error holds the address: whoever knows it can post.
"""

from __future__ import annotations

import logging
import re
from ipaddress import ip_address

from infra.notices.notice import Notice, NotSent

_STATUS = re.compile(r"error=(\d{3})\b")
"""In apprise's own words for a refusal."""


def send(address: str, notice: Notice) -> str:
    """Send one notice; return which service took it. Raises `NotSent`.

    apprise waits four seconds each for a connection and for an answer.
    """
    import apprise  # a campaign without such a route needs neither its time nor its memory

    logging.getLogger(apprise.LOGGER_NAME).propagate = False  # its words may quote a part of the address
    # A redirect could lead to plain HTTP, or to a stranger.
    service = apprise.Apprise.instantiate(address, asset=apprise.AppriseAsset(http_redirects=False))
    if service is None:
        raise NotSent("the route's address is none that apprise knows, such as slack://A/B/C")
    name = str(service.service_name)
    if _is_plain(address, service.protocol) and not _is_loopback(service.host):
        raise NotSent(f"the route's address for {name} is without encryption: write its scheme with an s at its end")
    kind = apprise.NotifyType.FAILURE if notice.is_urgent else apprise.NotifyType.INFO
    with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as words:
        is_sent = service.notify(title=notice.subject, body=notice.text, notify_type=kind)
        status = _STATUS.search(words.getvalue())
    if not is_sent:
        raise NotSent(f"{name} answers with status {status[1]}" if status else f"{name} cannot be reached")
    return f"{name} took it"


def _is_plain(address: str, protocols: object) -> bool:
    """Return True for a scheme that a service has without encryption, beside one with."""
    names = (protocols,) if isinstance(protocols, str) else protocols
    return isinstance(names, tuple | list) and address.partition("://")[0].lower() in names


def _is_loopback(host: str | None) -> bool:
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return False
