"""Short pages for every listing that AWS pages, whatever page size the caller requests.

A caller that reads only the first page misses something as soon as there are two items, which is the purpose. As on
AWS, a first page may be empty. botocore's models tell which listings have pages.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from botocore.exceptions import UnknownServiceError
from botocore.session import get_session
from moto.core.model import OperationModel

from infra.rehearsal.aws.answers import RequestRefused
from infra.rehearsal.aws.strict.document import AnswerDocument, Item, read
from infra.rehearsal.aws.strict.settings import Strictness

PAGES = 3
"""Maximum number of pages unless the caller requests shorter ones, to bound the requests for a long listing."""
EMPTY_SHARE = 0.2
S3_PAGE = 40
S3_LIMITS = {
    "ListObjects": "MaxKeys",
    "ListObjectsV2": "MaxKeys",
    "ListObjectVersions": "MaxKeys",
    "ListParts": "MaxParts",
    "ListMultipartUploads": "MaxUploads",
}
"""S3's tokens are keys, so moto makes its pages, of the requested size."""
KEPT = 2000
_TOKEN = "bivouac-page-"
_NAMES = re.compile(r"(Ids|Names|names|Arns|ARNs|ARNList|Versions|InstanceTypes|TagKeys)$")


@dataclass(frozen=True)
class Paging:
    """The paging of one operation, with names of the AWS model."""

    token: str
    next_token: str
    limit: str | None
    lists: tuple[str, ...]
    more: str | None

    @property
    def request_members(self) -> tuple[str, ...]:
        return (self.token, *([self.limit] if self.limit else []))


@lru_cache(maxsize=1)
def _loader() -> Any:
    return get_session().get_component("data_loader")


@cache
def _models(service: str) -> dict[str, Any]:
    try:
        return dict(_loader().load_service_model(service, "paginators-1")["pagination"])
    except UnknownServiceError:
        return {}


def paging(service: str, operation: OperationModel) -> Paging | None:
    """Return None for an operation without pages, and for S3, whose tokens are keys."""
    return None if service == "s3" else _by_botocore(service, operation.name) or _by_shapes(operation)


def _by_shapes(operation: OperationModel) -> Paging | None:
    """Find the paging of listings that botocore lacks: a token in and out, and one list."""
    request_members = dict(operation.input_shape.members) if operation.input_shape else {}
    answer_members = dict(operation.output_shape.members) if operation.output_shape else {}
    lists = [name for name, shape in answer_members.items() if shape.type_name == "list"]
    if "NextToken" not in request_members or "NextToken" not in answer_members or len(lists) != 1:
        return None
    return Paging(
        "NextToken", "NextToken", "MaxResults" if "MaxResults" in request_members else None, tuple(lists), None
    )


@cache
def _by_botocore(service: str, operation: str) -> Paging | None:
    description = _models(service).get(operation, {})
    token, next_token = description.get("input_token"), description.get("output_token")
    lists = description.get("result_key", [])
    lists = [lists] if isinstance(lists, str) else lists
    if not isinstance(token, str) or not isinstance(next_token, str) or not lists or any("." in path for path in lists):
        return None
    return Paging(token, next_token, description.get("limit_key"), tuple(lists), description.get("more_results"))


@dataclass(frozen=True)
class Rest:
    """The remaining items of a listing."""

    question: str
    template: bytes
    items: list[tuple[str, Item]]
    size: int


class Pages:
    """Pages of listings. A listing is read once, at its first page: later changes shift nothing between its pages."""

    def __init__(self, strictness: Callable[[], Strictness]) -> None:
        self._strictness = strictness
        self._rests: OrderedDict[str, Rest] = OrderedDict()
        self._numbers = itertools.count(1)
        self._asked: dict[str, int] = {}
        self._lock = threading.Lock()

    def next(self, paging: Paging, operation: OperationModel, params: dict[str, Any]) -> bytes | None:
        """Return the page of the request's token, or None without a token."""
        remainder = self._rests.get(str(params.get(paging.token)))
        return None if remainder is None else self._page(paging, read(remainder.template, operation), remainder)

    def refuse_unknown(self, paging: Paging, operation: OperationModel, params: dict[str, Any]) -> None:
        token = params.get(paging.token)
        remainder = self._rests.get(str(token))
        if token and (remainder is None or remainder.question != _question(paging, operation, params)):
            raise RequestRefused("InvalidNextToken", f"the token {token!r} is none of this listing's")

    def first_page(
        self, paging: Paging, operation: OperationModel, params: dict[str, Any], document: AnswerDocument
    ) -> bytes:
        items = [(name, item) for name in paging.lists for item in document.items(name)]
        for name in paging.lists:
            if document.items(name):
                document.fill(name, [])
        document.put(paging.next_token, "")
        requested_size = int(params.get(paging.limit or "") or 0)
        size = max(1, -(-len(items) // PAGES))
        size = min(size, requested_size) if requested_size else size
        remainder = Rest(_question(paging, operation, params), document.write(), items, size)
        with self._lock:
            number = self._asked[operation.name] = self._asked.get(operation.name, 0) + 1
        empty = bool(items) and self._strictness().chance("empty page", operation.name, number) < EMPTY_SHARE
        return self._page(paging, document, remainder, empty)

    def _page(self, paging: Paging, document: AnswerDocument, remainder: Rest, empty: bool = False) -> bytes:
        size = 0 if empty else remainder.size
        page_items, left = remainder.items[:size], remainder.items[size:]
        for name in paging.lists:
            if members := [item for key, item in page_items if key == name]:
                document.fill(name, members)
        if left:
            document.put(
                paging.next_token, self._keep(Rest(remainder.question, remainder.template, left, remainder.size))
            )
        if paging.more:
            document.put(paging.more, bool(left))
        return document.write()

    def _keep(self, remainder: Rest) -> str:
        with self._lock:
            token = f"{_TOKEN}{next(self._numbers)}"
            self._rests[token] = remainder
            while len(self._rests) > KEPT:
                self._rests.popitem(last=False)
        return token


def _question(paging: Paging, operation: OperationModel, params: dict[str, Any]) -> str:
    arguments = {key: value for key, value in params.items() if key not in paging.request_members}
    return json.dumps([operation.name, arguments], default=str, sort_keys=True)


def names_resources(params: dict[str, Any]) -> bool:
    """Return True if the request names resources: AWS answers that without pages."""
    return any(value and isinstance(value, list) and _NAMES.search(key) for key, value in params.items())
