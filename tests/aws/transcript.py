"""A transcript that can be attached to a public issue: what names an account, a person or a machine is replaced."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from functools import partial
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path

_NOBODYS = frozenset({"0.0.0.0", "127.0.0.1", "255.255.255.255", "169.254.169.254", "169.254.170.23"})
"""Addresses that name no machine: all, this one, and AWS's link-local services."""
_RULES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, keep, re.compile(pattern))
    for kind, keep, pattern in (
        ("signature", "head", r"(?P<head>X-Amz-(?:Signature|Credential|Security-Token)=)[^&\s\"']+"),
        ("token", "", r"k8s-aws-v1\.[\w-]+"),
        ("token", "", r"(?<![\w+/])(?:IQoJ|FwoG|FQoG)[\w+/=]{50,}"),
        ("key", "", r"(?<![A-Z0-9])A(?:KIA|SIA|ROA|IDA|GPA|NPA|NVA|PKA|BIA|CCA|IPA)[A-Z0-9]{12,}(?![A-Z0-9])"),
        ("email", "", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
        ("name", "head", r"(?P<head>:assumed-role/[\w+=,.@-]+/)[\w+=,.@-]+"),
        ("name", "head", r"(?P<head>:user/)[\w+=,.@/-]+"),
        ("host", "", r"(?<![\w.-])(?:ip|ec2)-\d+-\d+-\d+-\d+(?:\.[a-z0-9-]+)*"),
        ("endpoint", "tail", r"(?<![0-9A-Fa-f])[0-9A-F]{32}(?P<tail>\.[a-z0-9]+\.[a-z0-9-]+\.eks\.amazonaws\.com)"),
        ("account", "", r"(?<!\d)\d{12}(?!\d)"),
        ("account", "", r"(?<![\d-])\d{4}-\d{4}-\d{4}(?![\d-])"),
    )
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:.])")


class Stripper:
    """Replaces with names that stay the same: the same address is `<ip-1>` in every line."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """`known`: words of this machine and person, which no pattern knows."""
        self._names: dict[tuple[str, str], str] = {}
        self._known = sorted({word for word in known if len(word) >= 4}, key=len, reverse=True)

    def stripped(self, text: str) -> str:
        for word in self._known:
            if word in text:
                text = text.replace(word, self._name("private", word))
        for kind, keep, pattern in _RULES:
            text = pattern.sub(partial(self._replaced, kind, keep), text)
        text = _IPV6.sub(lambda match: self._address(match.group(), IPv6Address), text)
        return _IPV4.sub(lambda match: self._address(match.group(), IPv4Address), text)

    def _replaced(self, kind: str, keep: str, match: re.Match[str]) -> str:
        kept = match.group(keep) if keep else ""
        word = match.group()
        name = self._name(kind, word.replace("-", "") if kind == "account" else word)
        return name + kept if keep == "tail" else kept + name

    def _address(self, word: str, family: type[IPv4Address] | type[IPv6Address]) -> str:
        try:
            family(word)
        except AddressValueError:
            return word
        return word if word in _NOBODYS or word == "::" else self._name("ip", word)

    def _name(self, kind: str, word: str) -> str:
        if (kind, word) not in self._names:
            count = sum(other == kind for other, _ in self._names)
            self._names[kind, word] = f"<{kind}-{count + 1}>"
        return self._names[kind, word]


def known_here(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Words that name this person or machine, and the secrets of the environment."""
    secrets = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_PROFILE")
    login = environment.get("USER", "")
    words = (socket.gethostname(), str(Path.home()), "" if login == "root" else login)
    return tuple(word for word in (*words, *(environment.get(name, "") for name in secrets)) if word)


class Transcript:
    """A file of stripped lines. The raw text is written nowhere."""

    def __init__(self, path: Path, known: Iterable[str] = ()) -> None:
        self.path, self._stripper = path, Stripper(known)
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w")

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self._file.write(self._stripper.stripped(line).rstrip() + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def holds(text: str, account: str) -> bool:
    """Whether an account number is in a text, also one that is broken over lines."""
    return account in re.sub(r"[\s-]", "", text)
