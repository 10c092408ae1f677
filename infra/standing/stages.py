"""The stages of a campaign in an existing cluster: the same, in the same order, on what is borrowed."""

from __future__ import annotations

import time

from infra.campaign import report
from infra.campaign.relaunch import Renewal
from infra.campaign.stages import StageStep
from infra.inventory import certify
from infra.record.events import Stage
from infra.record.payloads.outputs import CertifyOutput, TeardownOutput
from infra.record.store import STOP
from infra.session.context import Context
from infra.standing import certificate, data, ending, health, images, opening
from infra.standing.belongings import Tenant

_LOOK_EVERY_S = 1.0


def _tenant(context: Context) -> Tenant:
    return Tenant(
        client=context.cluster_client(),
        store=context.store,
        spec=context.spec,
        pause=lambda: time.sleep(_LOOK_EVERY_S),
        guard=context.guard,
        say=context.progress.step,
    )


def end(context: Context, abandon: bool = False) -> TeardownOutput:
    """Take away all that the campaign made. `abandon`: give up what is not archived. Raises as `ending.end` does."""
    if abandon:  # a steward that Kubernetes cannot reach reads it, and launches nothing more
        context.store.put_json(STOP, {"asked_by": str(context.lease.holder)})
    ending_result = ending.end(_tenant(context), context.state(), abandon=abandon, person=context.operator_arn)
    for words in ending_result.stays:
        context.progress.note(words)
    for node, reason in ending_result.unreached.items():
        context.progress.note(f"our folder on node {node} was not reached: {reason}")
    context.progress.note(f"{len(ending_result.removed)} objects and folders removed")
    return TeardownOutput(resources=len(ending_result.removed), unreached=ending_result.unreached)


def certify_end(context: Context) -> CertifyOutput:
    """Look what is left, and say what was given back in which state. Raises `NotProven` unless nothing is left."""
    unreached_nodes = TeardownOutput.known(context.outputs).unreached
    certificate_found = certificate.certify(
        _tenant(context), context.state(), context.identity, unreached_nodes, context.operator_arn
    )
    return certify.conclude(context, certificate_found)


STEPS: tuple[StageStep, ...] = (
    StageStep(Stage.BAKE, "images by digest, as the spec names them; nothing is made", images.run),
    StageStep(Stage.PROVISION, "data to S3, and to the shared claim", data.run),
    StageStep(Stage.PREFLIGHT, "borrowed nodes prove themselves, all together prove the fabric", health.run),
    StageStep(Stage.LAUNCH, "the steward starts and launches the first attempt", opening.run),
    StageStep(Stage.SUPERVISE, "training, carried through failures by the steward", opening.supervise_training),
    StageStep(Stage.ARCHIVE, "the golden checkpoint to S3, read back, evaluated", opening.archive),
    StageStep(Stage.TEARDOWN, "all that the campaign made is removed; what is borrowed stays", end),
    StageStep(Stage.CERTIFY, "an independent look for what was left, and how nodes were given back", certify_end),
    StageStep(Stage.REPORT, "time, goodput, pictures", report.run),
)
"""`check` and `plan` come before them, without a record."""

RENEWAL = Renewal(images.run, data.lay)
