"""`bivouac profile NAME`: a trace of torch's profiler of some steps of a rank, fetched to this machine."""

from __future__ import annotations

from datetime import timedelta

from rich.console import Console

from infra.cli.look.cp import Counted
from infra.cli.look.inside import open_cluster
from infra.cli.records import record_of
from infra.cluster import transfer
from infra.cluster.execution import STDOUT, Containers
from infra.cluster.ranks import Member
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.console.words import plural, size
from infra.errors import TemporaryError, UserError
from infra.session.session import stored_spec


def profile_command(campaign: str, region: str, rank: int, steps: int, folder: str, console: Console) -> int:
    """Ask, wait, and fetch; the training goes on meanwhile. Exit code 0 when the trace is here."""
    store = record_of(campaign, region)
    if not stored_spec(store).runtime.is_built_in:
        cure = f"start your own profiler in the job, and fetch its trace: bivouac cp {campaign} {rank}:/path ."
        raise UserError("only the built-in trainer can be asked for a trace", seen="a workload", cure=cure)
    with open_cluster(store) as cluster:
        member = cluster.rank(rank)
        cluster.note(member, "bivouac profile")
        progress = Progress(console)
        with progress.stage("profile", f"{plural(steps, 'step')} of rank {rank}"):
            trace = fetch_trace(Containers(cluster.http), member, rank, steps, progress)
            outcome = transfer.out_of(Containers(cluster.http), member, trace, folder, Counted(progress))
        say(console, f"{outcome['path']}: {size(outcome['bytes'])}; open it in https://ui.perfetto.dev")
    return 0


def fetch_trace(containers: Containers, member: Member, rank: int, steps: int, progress: Progress) -> str:
    """Return the path of the trace in the container. Raises `TemporaryError` if the rank ended before it."""
    words = ["python", "-m", "trainer.builtin.watch.profile", "--rank", str(rank), "--steps", str(steps)]
    output: dict[int, bytes] = {}

    def hear(channel: int, data: bytes) -> None:
        output[channel] = output.get(channel, b"") + data
        progress.step("the rank writes")

    with containers.running(member.pod, member.container, words) as run:
        run.execution.end_input()
        code = run.execution.run(hear)
    lines = output.pop(STDOUT, b"").decode(errors="replace").split()
    if code or not lines:
        error_text = b"".join(output.values()).decode(errors="replace").strip()[-300:] or f"exit code {code}"
        cure = "ask again when it trains: `bivouac status` says so"
        raise TemporaryError("there is no trace", seen=error_text, cure=cure, delay=timedelta(minutes=1))
    return lines[-1]
