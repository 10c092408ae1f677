"""The choice of the target: AWS as the environment names it, or a rehearsal site on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import UserError
from infra.extras import refuse_missing
from infra.folders import cache_root, results_root

if TYPE_CHECKING:
    from infra.campaign.relaunch import Renewal
    from infra.campaign.stages import StageStep
    from infra.console.tables import Listing
    from infra.plan.facts import Facts
    from infra.record.payloads.outputs import TeardownOutput
    from infra.rehearsal.drills.conduct import DrillReport
    from infra.session.context import Context
    from infra.spec.campaign import Spec

_INSIDE = "BIVOUAC_SITE"


def in_site() -> bool:
    """Return True if this process runs inside a rehearsal site."""
    return _INSIDE in os.environ


def enter_for(spec: Spec, progress: Callable[[str], None], *, anywhere: bool = False) -> None:
    """Enter the spec's target. A rehearsal replaces this process by the same command inside the site. `anywhere`: the
    command works in an existing cluster too. Raises `UserError` if it does not work at the target."""
    if spec.cluster is not None:
        if not anywhere:
            refuse_standing(spec)
        _refuse_name_in_use(spec)
        return
    _refuse_borrowers_name(spec)
    if in_site():
        give_inputs(spec)
        return
    _refuse_name_in_use(spec)
    if spec.target == "aws":
        from infra.aws.account import Account

        Account(spec.region).refuse_foreign(spec.account)  # before anything is fetched, built or asked
        have_engine()
        return
    refuse_missing("rehearsal")
    refuse_missing("trainer")
    from infra.rehearsal.site import campaigns, handle, secrets, surroundings

    secrets.values(spec)  # refused before a site is started
    if campaigns.site_of(spec.campaign) is None:  # else its commit is recorded
        fetch_source(spec, progress)
    _choose_packages(spec, progress)
    surroundings.refuse_missing_programs(spec)

    def note(folder: Path) -> None:
        campaigns.remember(spec, folder)

    site = handle.ensure(campaigns.SITE, progress, note)
    note(Path(site.folder))
    handle.enter(site, command_line())


def steps(spec: Spec) -> Sequence[StageStep]:
    """Return the stages of a campaign at the spec's target, in order."""
    if spec.cluster is None:
        from infra.campaign import stages

        return stages.STEPS
    from infra.standing import stages as of_standing

    return of_standing.STEPS


def refuse_standing(spec: Spec, command: str = "") -> None:
    """Raise `UserError` for a campaign in an existing cluster: `command` has no way there."""
    if spec.cluster is not None:
        from infra.standing.absent_commands import refuse

        refuse(spec, spec.cluster, command)


def ask_cluster(spec: Spec, facts: Facts, progress: Callable[[str], None]) -> Facts | None:
    """Return the facts with the answers of the spec's existing cluster; None where AWS is to be asked. A campaign that
    has begun is asked nothing: it fills its quota itself."""
    if spec.cluster is None:
        return None
    from infra.cluster.kubernetes import OF_WORLD
    from infra.cluster.standing.connection import open_account
    from infra.session.session import has_begun
    from infra.standing.look import look
    from infra.standing.openings import openings

    with suppress(UserError, *OF_WORLD):  # what is wrong with login or bucket, the look tells with its cure
        if has_begun(open_account(spec)[0], spec):
            return facts

    cluster_facts = look(spec, spec.cluster, openings(spec, spec.cluster), progress)
    return facts.model_copy(update={"cluster": cluster_facts})


def fetch_source(spec: Spec, progress: Callable[[str], None], *, patient: bool = False) -> None:
    """Let git fetch a job's reference while it reaches the repository: no way leads out of a site. `patient`: go on
    where it cannot be reached, as a campaign that has begun does. Raises `UserError`."""
    from infra.plan import git_source
    from infra.spec.workload.git_reference import GitSource

    source = spec.runtime.source
    if isinstance(source, GitSource):
        progress(f"source: {source}")
        try:
            git_source.fetch(source)
        except UserError as error:
            if not patient:
                raise
            progress(f"{error}; it is judged as it was fetched last")


def _choose_packages(spec: Spec, progress: Callable[[str], None]) -> None:
    """Let pip choose a job's packages while it reaches a registry: no way leads out of a site, which takes them from
    the cache."""
    from infra.plan import git_source
    from infra.spec.workload.workload import Workload

    job = git_source.local(spec.runtime)
    if not isinstance(job, Workload) or job.requirements is None or job.source is None:
        return
    from infra.data.requirements import image_python, resolve

    python = image_python(job, lambda: ".".join(map(str, sys.version_info[:2])))
    resolve(job, Path(str(job.source)).expanduser(), python, progress)


def give_inputs(spec: Spec) -> None:
    """Put into the emulated account what a rehearsal's spec names: bought capacity, the values of a job's secrets, the
    files that it reads from S3. On AWS they are there."""
    if not in_site() or spec.target == "aws":
        return
    from infra.rehearsal.site import secrets, surroundings

    surroundings.give_reservation(spec)
    if secrets.sources(spec):
        secrets.give(spec)
    surroundings.give_mounts(spec)


def _refuse_name_in_use(spec: Spec) -> None:
    """Raise `UserError` if a rehearsal has the name: `bivouac down NAME` must mean one campaign of this machine."""
    if not (cache_root() / "sites").is_dir():
        return
    from infra.rehearsal.site import campaigns

    site = campaigns.site_of(spec.campaign)
    if site is not None and (spec.target != "rehearsal" or site.name != campaigns.SITE):
        raise UserError(
            "the campaign's name is in use by a rehearsal",
            seen=f"{spec.campaign} in site {site.name}",
            cure="give this campaign another name, or remove the rehearsals: bivouac down --all",
        )


def _refuse_borrowers_name(spec: Spec) -> None:
    """Raise `UserError` if a campaign in an existing cluster has the name on this machine."""
    from infra.record import borrowing

    earlier_campaign = borrowing.recall(spec.campaign)
    if earlier_campaign is not None and earlier_campaign.cluster is not None:
        raise UserError(
            "the campaign's name is in use by one in an existing cluster",
            seen=f"{spec.campaign} in context {earlier_campaign.cluster.context}",
            cure="give this campaign another name",
        )


def enter_where(campaign: str, spec: Path | None = None) -> None:
    """Enter the rehearsal site that holds this campaign; stay on AWS if there is none. `spec`: a file that it is to be
    relaunched with."""
    if in_site() or not (cache_root() / "sites").is_dir():
        return
    from infra.rehearsal.site import campaigns, handle

    site = campaigns.site_of(campaign)
    if site is not None:
        if spec is not None:
            from infra.spec.campaign import load

            new_spec = load(spec).spec
            fetch_source(new_spec, lambda step: None)
            _choose_packages(new_spec, lambda step: None)
        handle.enter(site, command_line())


def rehearsals() -> dict[str, bool]:
    """Return campaign -> True if its site runs, for all campaigns that are rehearsed on this machine."""
    if not (cache_root() / "sites").is_dir():
        return {}
    from infra.rehearsal.site import campaigns

    return {name: campaigns.site_of(name) is not None for name in campaigns.everywhere()}


def remove_site_of(campaign: str, say: Callable[[str], None]) -> int:
    """Remove the site of a rehearsal that needs no teardown; return 1 if its archive could not be exported, else 0."""
    from infra.rehearsal.site import ending

    return ending.remove_site_of(campaign, say)


def renewal(spec: Spec) -> Renewal:
    """Return how a relaunch renews images and code at the spec's target."""
    if spec.cluster is None:
        from infra.campaign import relaunch

        return relaunch.OF_ACCOUNT
    from infra.standing import stages as of_standing

    return of_standing.RENEWAL


def end(spec: Spec) -> Callable[[Context, bool], TeardownOutput]:
    """Return the teardown at the spec's target: a function of the context, and of whether what is not archived is given
    up."""
    if spec.cluster is None:
        from infra.campaign import teardown

        return lambda context, abandon: teardown.run(context, abandon=abandon)
    from infra.standing import stages as of_standing

    return of_standing.end


def have_engine() -> None:
    """Install the Pulumi engine unless PATH has it: the only tool that AWS needs besides the Python packages."""
    os.environ["PATH"] = os.pathsep.join([*hands("pulumi"), os.environ["PATH"]])


def hands(*tools: str) -> list[str]:
    """Install these tools unless PATH has them; return the PATH folders with which `pulumi` finds engine, language host
    and Python."""
    from infra.folders import tools_dir
    from infra.toolchain.ensure import ensure

    ensure(list(tools))
    return [str(tools_dir()), str(Path(sys.executable).parent)]


def spends(spec: Spec) -> bool:
    """Return True if this target bills. The cost of a rehearsal is only what its duration would have cost on AWS."""
    return spec.target == "aws"


def diagnose() -> tuple[Listing, list[dict[str, Any]]]:
    """Return the requirements of a rehearsal as a table and for machines; `ok` is True for those that are met."""
    from infra.rehearsal import doctor

    rows = doctor.diagnose()
    return doctor.render(rows), [asdict(row) for row in rows]


def site_facts() -> dict[str, Any] | None:
    """Return what is emulated and what is not rehearsed; None on AWS."""
    if not in_site():
        return None
    from infra.tables import table

    facts: dict[str, Any] = table("infra.rehearsal.site", "honesty")
    return facts


def missed_faults(spec: Spec) -> tuple[str, ...]:
    """Return the rehearsal's faults that have not struck, in words: what they were to show was not seen."""
    faults = spec.rehearsal.faults if spec.rehearsal else ()
    if not in_site() or not faults:
        return ()
    from infra.folders import site_dir
    from infra.rehearsal.site import campaigns

    struck = campaigns.struck_in(site_dir(campaigns.SITE), spec.campaign)
    return tuple(fault.sentence() for number, fault in enumerate(faults) if number not in struck)


def has_console(spec: Spec) -> bool:
    """Return whether AWS's console shows the campaign: none shows an emulated account, or a cluster of one's own."""
    return spec.target == "aws"


def drill(names: list[str], draws: int, seed: int, page: Path | None, say: Callable[[str], None]) -> DrillReport:
    """Rehearse these faults, and so many that the seed draws; return what each has led to, and write the newest results
    of all into `page`. Raises `UserError` inside of a site, and for a page without a place for the table."""
    from infra.rehearsal.drills import conduct

    if in_site():
        raise UserError("a drill starts a site of its own", seen="a shell inside of a site", cure="leave it first")
    refuse_missing("rehearsal")
    refuse_missing("trainer")
    return conduct.drill(names, draws, seed, page, say)


def game_day(folder: Path) -> list[Path]:
    """Write the page of a game day over the kept drills into a folder, and return its files. Raises `UserError` where
    no drill has left a result."""
    from infra.rehearsal.drills import game_day as page
    from infra.rehearsal.drills.history import kept_results

    return page.write_game_day(folder, page.game_day(kept_results(results_root()), datetime.now(UTC)))


def command_line() -> list[str]:
    """Return the command line that starts this process again, inside a site, whose environment says where our code is:
    `python -m` alone looks first into the folder where a person stands, whose project may have an `infra` too."""
    return [sys.executable, "-P", "-m", "infra.cli.main", *sys.argv[1:]]


def remove_all(say: Callable[[str], None]) -> int:
    """Remove every rehearsal site of this machine; first export what its campaigns keep on purpose."""
    if not (cache_root() / "sites").is_dir():
        say("there is no rehearsal site on this machine")
        return 0
    from infra.rehearsal.site import ending

    return ending.remove_all(say)
