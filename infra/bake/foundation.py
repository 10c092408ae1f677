"""The foundation of an account and region: buckets, registry, and the build network."""

from __future__ import annotations

from infra.aws.keys import try_key
from infra.bake.keeping import foundation_settings, remember, with_zone
from infra.bake.trial_build import try_closer
from infra.engine.engine import Engine
from infra.folders import writable
from infra.record.events import Stage
from infra.session.context import Context
from infra.session.session import FOUNDATION, foundation_lease
from infra.spec.names import FOUNDATION_STACK
from infra.stack.outputs import FoundationOutputs

OUTPUTS = "foundation"
"""Key of the foundation's outputs in the bake's."""


def foundation(context: Context, engine: Engine | None = None) -> FoundationOutputs:
    """Bring the foundation up, unless this campaign's bake has, and return its outputs. Idempotent."""
    document = context.outputs.get(Stage.BAKE, {}).get(OUTPUTS)
    outputs_known = None if document is None else FoundationOutputs.model_validate(document)
    if outputs_known is not None and (outputs_known.build_network_subnet_id or context.spec.image.builders):
        return outputs_known
    engine = engine or Engine(context, writable(context.results / "pulumi"))
    context.progress.step("foundation: buckets, registry, build network")
    with foundation_lease(context) as lease, engine.holding(lease):
        outputs = engine.up(engine.stack(FOUNDATION_STACK, settle_config(context)))
    context.guard()
    if refusal := try_closer(context):
        context.progress.note(refusal)
    return FoundationOutputs.model_validate(outputs)


def settle_config(context: Context) -> dict[str, str]:
    """Return the configuration for an `up`, and store its settings. The caller holds the foundation's lease."""
    settings = with_zone(context.account, foundation_settings(context.store, context.spec))
    if (key := settings.keeping.key_arn) is not None:
        try_key(context.account, key, context.buckets.state, f"{FOUNDATION}/key-trial")
    remember(context.store, settings)
    return settings.to_config()
