"""The stages of a campaign in an existing cluster: the same, in the same order, on what is borrowed."""

from __future__ import annotations

from infra.campaign import report
from infra.campaign.stages import StageStep
from infra.record.events import Stage
from infra.record.payloads.outputs import TeardownOutput
from infra.session.context import Context
from infra.standing import data, health, images, opening

STEPS: tuple[StageStep, ...] = (
    StageStep(Stage.BAKE, "images by digest, as the spec names them; nothing is made", images.run),
    StageStep(Stage.PROVISION, "data to S3, and to the shared claim", data.run),
    StageStep(Stage.PREFLIGHT, "borrowed nodes prove themselves, all together prove the fabric", health.run),
    StageStep(Stage.LAUNCH, "the steward starts and launches the first attempt", opening.run),
    StageStep(Stage.SUPERVISE, "training, carried through failures by the steward", opening.supervise_training),
    StageStep(Stage.ARCHIVE, "the golden checkpoint to S3, read back, evaluated", opening.archive),
    StageStep(Stage.REPORT, "time, goodput, pictures", report.run),
)
"""`check` and `plan` come before them, without a record."""


def end(context: Context, abandon: bool) -> TeardownOutput:
    """Take away all that the campaign made. `abandon`: give up what is not archived."""
    raise NotImplementedError
