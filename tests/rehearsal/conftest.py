"""Fixtures of an emulated AWS in the test's process, for every test of this folder."""

from __future__ import annotations

from aws_account import aws, here, network, world

__all__ = ["aws", "here", "network", "world"]
