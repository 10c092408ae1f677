"""Data that the cluster prepares: what of it the driver asks, gives and verifies. No text and no token passes here."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.data.dataset import DataSet, load, parts_of, run_tool
from infra.errors import PermanentError, UserError
from infra.folders import cache_root, keep
from infra.record.objects import object_or_none
from infra.spec.campaign import Spec
from infra.spec.names import DATASETS_PREFIX, MOUNTS_TAG, TEXT_TAG, buckets, data_prefix
from infra.spec.recipe import recipe_of
from trainer.contract import DATA_MANIFEST_NAME, DATA_SUMMARY_NAME, TOKENIZER_NAME
from trainer.contract.frozen import Frozen
from trainer.contract.preparing import Prepared, Preparing, parts_prefix, result_key

_LOOKS = 16


class SourceListing(Frozen, extra="ignore"):
    """The sources, by their listing in S3 alone."""

    plan: str
    """Digest of all that determines the prepared bytes."""
    files: int
    bytes: int
    text_bytes: int
    """About how much text that is."""


def listing(spec: Spec, progress: Callable[[str], None]) -> SourceListing:
    """List the sources. Raises `UserError` for one that is missing, empty or may not be listed."""
    return SourceListing.model_validate(run_tool(recipe_of(spec), None, None, progress))


def refuse_unmarked(account: Account, spec: Spec) -> None:
    """Raise `UserError` for the bucket of a source or of a mount by Mountpoint that is seen not to let the nodes read
    it. One whose settings this driver may not see, such as another account's, is left to the nodes."""
    texts = [part.source for part in spec.data.parts] if spec.data is not None and spec.prepares_data else []
    mounts = [*spec.runtime.by_mountpoint.values()]
    other_way = "prepare.where: driver" if texts else "leave `by: mountpoint` out"
    for tag, prefixes in ((TEXT_TAG, texts), (MOUNTS_TAG, mounts)):
        homes = {prefix.removeprefix("s3://").partition("/")[0] for prefix in prefixes}
        for bucket in sorted(homes - {buckets(spec.account, spec.region).data}):
            if (mark := _mark(account.client("s3"), bucket, tag)) is not None:
                arn = f"arn:aws:s3:::{bucket}"
                raise UserError(
                    f"s3://{bucket} does not let the campaign's nodes read it",
                    seen=mark,
                    cure=f"its owner opts in: `aws s3control tag-resource --account-id {spec.account} --resource-arn "
                    f"{arn} --tags Key={tag},Value=true` and `aws s3api put-bucket-abac --bucket {bucket} "
                    f"--abac-status Status=Enabled`; or {other_way}",
                )


def _mark(s3: Any, bucket: str, wanted_tag: str) -> str | None:
    """Return what the bucket lacks for its tags to open it; None for nothing, or if it cannot be seen."""
    try:
        if s3.get_bucket_abac(Bucket=bucket).get("AbacStatus", {}).get("Status") != "Enabled":
            return "its ABAC is off, so its tags open nothing"
        tags = s3.get_bucket_tagging(Bucket=bucket)["TagSet"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchTagSet":
            return None
        tags = []
    return None if any(tag["Key"] == wanted_tag for tag in tags) else f"it has no tag {wanted_tag}"


def result(account: Account, bucket: str, plan: str) -> str | None:
    """Return the digest of the data set that a plan was prepared to; None if it was not."""
    body = object_or_none(account.client("s3"), bucket, result_key(plan))
    return None if body is None else Prepared.model_validate_json(body).digest


def preparing(spec: Spec, bucket: str, plan: str) -> Preparing:
    """Return what the pods are given."""
    recipe = recipe_of(spec)
    if recipe.tokenizer is not None:
        # The name of the file here says nothing there.
        recipe = recipe.model_copy(update={"tokenizer": Path(TOKENIZER_NAME)})
    workers = spec.built_in[1].prepare.nodes
    return Preparing(recipe=recipe, plan=plan, bucket=bucket, datasets=DATASETS_PREFIX, workers=workers)


def give_tokenizer(account: Account, spec: Spec, bucket: str, plan: str) -> None:
    """Upload the tokenizer that the spec names, if it names one, to where the pods look for it."""
    path = spec.built_in[1].tokenizer
    if path is None:
        return
    content = path.expanduser().read_bytes()
    put_with_digest(account, bucket, f"{parts_prefix(plan)}files/{TOKENIZER_NAME}", content)


def verified_data(account: Account, bucket: str, digest: str, progress: Callable[[str], None]) -> DataSet:
    """Return the data set after its verification: S3 has every file, with the size and digest of the manifest.

    Only manifest, summary and tokenizer are read. Raises `PermanentError` for what is missing or damaged.
    """
    s3, folder = account.client("s3"), cache_root() / "prepared" / digest[:32]
    folder.mkdir(parents=True, exist_ok=True)
    for name in (TOKENIZER_NAME, DATA_SUMMARY_NAME, DATA_MANIFEST_NAME):
        content = object_or_none(s3, bucket, f"{data_prefix(digest)}{name}")
        if content is None:
            raise _unsound(bucket, digest, f"{name} is missing")
        keep(folder / name, content, lambda note: None)
    data = load(folder)
    if data.digest != digest:
        raise _unsound(bucket, digest, f"the manifest's SHA-256 is {data.digest}")
    digests = {TOKENIZER_NAME: data.manifest.tokenizer_sha256}
    for shard in (*data.manifest.train, *data.manifest.validation):
        digests |= {shard.file: shard.sha256, shard.index: shard.index_sha256}
    sizes = {shard.file: shard.tokens * data.manifest.token_bytes for shard in data.manifest.train}

    def look(name: str) -> str:
        try:
            head = s3.head_object(Bucket=bucket, Key=f"{data_prefix(digest)}{name}", ChecksumMode="ENABLED")
        except ClientError as error:
            return f"{name}: {error.response['Error']['Code']}"
        digest_there = base64.b64decode(head.get("ChecksumSHA256", "")).hex()
        if digest_there != digests[name]:
            return f"{name}: SHA-256 {digest_there or 'unknown to S3'}, wanted {digests[name]}"
        if name in sizes and head["ContentLength"] != sizes[name]:
            return f"{name}: {head['ContentLength']} bytes, wanted {sizes[name]}"
        return ""

    wrong = list[str]()
    with ThreadPoolExecutor(_LOOKS) as pool:
        for number, fault in enumerate(pool.map(look, digests), 1):
            progress(f"data: {number} of {len(digests)} files have the manifest's digest in S3")
            wrong += [fault] if fault else []
    if wrong:
        raise _unsound(bucket, digest, "; ".join(wrong[:5]))
    return data


def put_with_digest(account: Account, bucket: str, key: str, content: bytes) -> None:
    """Put an object as the parts of a preparation are, with a digest that S3 checks."""
    digest = hashlib.sha256(content)
    account.client("s3").put_object(
        Bucket=bucket,
        Key=key,
        Body=content,
        ChecksumAlgorithm="SHA256",
        ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
        Metadata={"sha256": digest.hexdigest()},
    )


def _unsound(bucket: str, digest: str, fact: str) -> PermanentError:
    place = f"s3://{bucket}/{data_prefix(digest)}"
    cure = f"remove {place} and the result in {bucket}/prepared/ that names it, then run the same command again"
    return PermanentError(
        "the prepared data are not whole; no GPU node was requested", seen=f"{place}: {fact}", cure=cure
    )


def refusal(message: str) -> UserError:
    """Return a pod's own words as an error."""
    problem, fact, cure = parts_of(message)
    return UserError(problem, seen=fact, cure=cure)
