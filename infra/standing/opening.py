"""Launch and supervision at an existing cluster: the stages of `infra.campaign` without the account around them."""

from __future__ import annotations

from lightkube import Client

from infra.campaign import launch, supervise
from infra.campaign.closing import SILENT
from infra.campaign.launch import NodesLeft
from infra.campaign.supervise import StewardWatch
from infra.errors import PermanentError
from infra.record.payloads.outputs import ArchiveOutput, LaunchOutput, SuperviseOutput
from infra.session.context import Context


def run(context: Context) -> LaunchOutput:
    """Start the steward and wait for its first attempt. A steward that exists stays, with its configuration."""
    config = launch.configuration(context)
    client = context.cluster_client()
    context.guard()
    launch.deploy(client, context.store, config)
    return launch.await_attempt(context, client, lambda: None, _nodes_stay)


def _nodes_stay(context: Context, client: Client) -> NodesLeft:
    return NodesLeft("the nodes are borrowed and stay", "`bivouac run` goes on on them")


def supervise_training(context: Context) -> SuperviseOutput:
    """Watch until training is completed, stopped or held. Nobody watches the shared tier but the steward."""
    return supervise.watch_training(context, BorrowedStewardWatch(context), lambda: None)


def archive(context: Context) -> ArchiveOutput:
    """Wait until the golden checkpoint is verified in the archive."""
    return supervise.watch_archive(context, BorrowedStewardWatch(context))


class BorrowedStewardWatch(StewardWatch):
    """Watches the steward of an existing cluster. After `SILENT` the gang is ended, so that its nodes are free."""

    def give_up(self) -> None:
        """End steward and gang, and raise `PermanentError`: nobody watches what runs on the nodes."""
        context, name = self.context, self.context.spec.campaign
        launch.withdraw(context, context.cluster_client())
        raise PermanentError(
            f"the steward has been silent for {SILENT.total_seconds() / 60:.0f} minutes: its gang is ended",
            seen="its pod does not run, or cannot reach the record in S3",
            cure="`kubectl describe pods` in the campaign's namespace shows why; mend it, then `bivouac run` goes on; "
            f"or `bivouac down {name} --abandon` gives up what is not archived",
        )
