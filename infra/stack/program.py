"""The Pulumi program of both kinds of stack."""

from __future__ import annotations

import pulumi

from infra.stack.settings import FoundationSettings, read_settings


def program() -> None:
    """Make the stack that the configuration describes. The imports are late: the SDKs take seconds to load."""
    settings = read_settings(pulumi.Config().get)
    if isinstance(settings, FoundationSettings):
        from infra.stack.foundation import foundation

        outputs = foundation(settings)
    else:
        from infra.stack.campaign import campaign

        outputs = campaign(settings)
    for name, value in outputs.items():
        pulumi.export(name, value)
