"""The stages of a campaign."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """The stages of a campaign, in order."""

    CHECK = "check"
    PLAN = "plan"
    BAKE = "bake"
    PROVISION = "provision"
    PREFLIGHT = "preflight"
    LAUNCH = "launch"
    SUPERVISE = "supervise"
    ARCHIVE = "archive"
    TEARDOWN = "teardown"
    CERTIFY = "certify"
    REPORT = "report"
