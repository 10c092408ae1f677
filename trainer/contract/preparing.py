"""A preparation by several pods: what the driver gives them, and where in the data bucket its parts and result lie."""

from __future__ import annotations

from pydantic import Field

from trainer.contract.frozen import Frozen
from trainer.contract.recipe import Recipe

SHARE_FILE = "/config/prepare.json"
SCRATCH = "/preparing"
"""The pod's own folder, gone with it."""
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an indexed Job."""


class Preparing(Frozen):
    """One preparation: its recipe, and its places in S3."""

    recipe: Recipe
    """A given tokenizer lies in S3 beside the parts, as `tokenizer.json`."""
    plan: str
    """Digest of all that determines the bytes: recipe, given tokenizer, the files' names, sizes and entity tags."""
    bucket: str
    datasets: str
    """Prefix of the bucket's data sets; each lies below it, in a folder named by the digest of its manifest."""
    workers: int = Field(ge=1)

    @property
    def parts(self) -> str:
        """Prefix of the finished parts, which the bucket forgets after some days."""
        return parts_prefix(self.plan)

    @property
    def result(self) -> str:
        """Key of the result, which is written last."""
        return result_key(self.plan)


class Prepared(Frozen):
    """The result of a preparation."""

    digest: str
    """SHA-256 of its manifest."""


PARTS, RESULTS = "preparing/", "prepared/"


def parts_prefix(plan: str) -> str:
    return f"{PARTS}{plan}/"


def result_key(plan: str) -> str:
    return f"{RESULTS}{plan}.json"
