"""The ways by which a notice reaches people: an SNS topic, a webhook in the form of Slack's, and routes of apprise's.

No error holds the webhook's address: whoever knows it can post.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account, every
from infra.cluster.secrets import SecretRefused, text_of, value_of
from infra.errors import TemporaryError
from infra.notices.notice import Notice, NotSent
from infra.plan.survey import environment
from infra.spec.campaign import Spec
from infra.spec.secrets import SecretSource

TOPIC, WEBHOOK = "topic", "webhook"
_TIMEOUT_S = 5.0
SHORT = Config(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=2, read_timeout=_TIMEOUT_S)
"""For AWS: the campaign does not wait for a notice."""
_WELL = range(200, 300)
_UNCONFIRMED = "PendingConfirmation"
"""In the place of a subscription's ARN: https://docs.aws.amazon.com/sns/latest/api/API_Subscription.html"""


Way = Callable[[Notice], str | None]
"""Sends one notice, and returns what the other side answered."""


_STATUS = re.compile(r"error=(\d{3})\b")
"""In apprise's own words for a refusal."""


def send(address: str, notice: Notice) -> str:
    """Send one notice by a route of `notify.routes`; return which service took it. Raises `NotSent`. No error holds the
    address: whoever knows it can post. https://github.com/caronc/apprise/wiki

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


def way_names(spec: Spec) -> tuple[str, ...]:
    """Return the names of the ways that the spec gives. An existing cluster has no topic, and its spec names no
    webhook."""
    topic = (TOPIC,) if environment(spec).makes_cluster else ()
    return (*topic, *((WEBHOOK,) if spec.notify.webhook is not None else ()), *spec.notify.routes)


def ways(spec: Spec, guard: Callable[[], None] | None = None, webhook: str = "") -> dict[str, Way]:
    """Return name -> function that sends one notice within seconds or raises `NotSent`. `guard`: see `Account`;
    `webhook`: address that an existing cluster's Secret has, empty without one."""
    account = Account(spec.region, SHORT)
    account.guard = guard
    functions: dict[str, Way] = {}
    if TOPIC in way_names(spec):
        functions[TOPIC] = lambda notice: publish(account, spec.notices_topic, notice)
    elif webhook:
        functions[WEBHOOK] = lambda notice: post(webhook.strip(), notice)
    if spec.notify.webhook is not None:
        functions[WEBHOOK] = _to_secret_address(account, "the webhook", spec.notify.webhook, post)
    for name, route in spec.notify.routes.items():
        functions[name] = _to_secret_address(account, f"the route {name}", route, send)
    return functions


def _to_secret_address(account: Account, words: str, source: SecretSource, send: Callable[[str, Notice], str]) -> Way:
    """Return the way that sends to an address, which it reads anew for each notice: it may be replaced."""

    def send_there(notice: Notice) -> str:
        try:
            address = value_of(text_of(account, source), source).strip()
        except (SecretRefused, TemporaryError) as error:
            raise NotSent(f"{words}'s address cannot be read: {error}") from None
        return send(address, notice)

    return send_there


def publish(account: Account, topic: str, notice: Notice) -> str:
    try:
        answer = account.client("sns").publish(TopicArn=topic, Subject=notice.subject, Message=notice.text)
    except (ClientError, BotoCoreError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        raise NotSent(f"{topic}: {code}") from error
    return f"{topic} took it as message {answer['MessageId']}"


def recipients(account: Account, topic: str) -> str:
    """Return whom a topic passes a message on to, in words; not to those who have not confirmed."""
    try:
        rows = list(every(account.client("sns"), "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic))
    except (ClientError, BotoCoreError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return f"its subscribers cannot be listed: {code}"
    names = [
        f"{row['Protocol']} {row['Endpoint']}" + (" (not confirmed)" if row["SubscriptionArn"] == _UNCONFIRMED else "")
        for row in rows
    ]
    return f"it goes to {', '.join(names) or 'nobody'}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to plain HTTP, or to a stranger."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(address: str, notice: Notice, trust: ssl.SSLContext | None = None) -> str:
    """Post as to Slack's incoming webhooks, which take JSON with `text`.
    https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks

    `trust`: by default the machine's certificates.
    """
    if urlsplit(address).scheme != "https":
        raise NotSent("the webhook's address does not begin with https://")
    # The three characters that Slack's text must escape.
    slack_text = f"*{notice.subject}*\n{notice.text}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    body = json.dumps({"text": slack_text}).encode()
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=trust))
    try:
        http_request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with opener.open(http_request, timeout=_TIMEOUT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        error.close()
        status = error.code
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        # Only its kind: the words may quote the address.
        raise NotSent(f"the webhook cannot be reached: {type(reason).__name__}") from None
    if status not in _WELL:
        raise NotSent(f"the webhook answers with status {status}")
    return f"the webhook answers with status {status}"


def subscribe(account: Account, spec: Spec) -> list[str]:
    """Subscribe the addresses that are not yet; return them. Each gets one mail from AWS with a link to confirm.

    One that never confirmed stays as it is: AWS would write to it again, at each campaign.
    """
    if not spec.notify.email:
        return []
    sns, topic = account.client("sns"), spec.notices_topic
    subscriptions = every(sns, "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic)
    addresses = {subscription["Endpoint"] for subscription in subscriptions if subscription["Protocol"] == "email"}
    new = [address for address in spec.notify.email if address not in addresses]
    for address in new:
        sns.subscribe(TopicArn=topic, Protocol="email", Endpoint=address)
    return new
