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
from infra.rehearsal.aws.strict.document import Document, Item, read
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
    def asked(self) -> tuple[str, ...]:
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
    given = dict(operation.input_shape.members) if operation.input_shape else {}
    told = dict(operation.output_shape.members) if operation.output_shape else {}
    lists = [name for name, shape in told.items() if shape.type_name == "list"]
    if "NextToken" not in given or "NextToken" not in told or len(lists) != 1:
        return None
    return Paging("NextToken", "NextToken", "MaxResults" if "MaxResults" in given else None, tuple(lists), None)


@cache
def _by_botocore(service: str, operation: str) -> Paging | None:
    found = _models(service).get(operation, {})
    token, next_token = found.get("input_token"), found.get("output_token")
    lists = found.get("result_key", [])
    lists = [lists] if isinstance(lists, str) else lists
    if not isinstance(token, str) or not isinstance(next_token, str) or not lists or any("." in one for one in lists):
        return None
    return Paging(token, next_token, found.get("limit_key"), tuple(lists), found.get("more_results"))


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

    def next(self, how: Paging, operation: OperationModel, params: dict[str, Any]) -> bytes | None:
        """Return the page of the request's token, or None without a token."""
        rest = self._rests.get(str(params.get(how.token)))
        return None if rest is None else self._page(how, read(rest.template, operation), rest)

    def refuse_unknown(self, how: Paging, operation: OperationModel, params: dict[str, Any]) -> None:
        token = params.get(how.token)
        rest = self._rests.get(str(token))
        if token and (rest is None or rest.question != _question(how, operation, params)):
            raise RequestRefused("InvalidNextToken", f"the token {token!r} is none of this listing's")

    def first(self, how: Paging, operation: OperationModel, params: dict[str, Any], document: Document) -> bytes:
        items = [(name, item) for name in how.lists for item in document.items(name)]
        for name in how.lists:
            if document.items(name):
                document.fill(name, [])
        document.put(how.next_token, "")
        asked = int(params.get(how.limit or "") or 0)
        size = max(1, -(-len(items) // PAGES))
        size = min(size, asked) if asked else size
        rest = Rest(_question(how, operation, params), document.write(), items, size)
        with self._lock:
            number = self._asked[operation.name] = self._asked.get(operation.name, 0) + 1
        empty = bool(items) and self._strictness().chance("empty page", operation.name, number) < EMPTY_SHARE
        return self._page(how, document, rest, empty)

    def _page(self, how: Paging, document: Document, rest: Rest, empty: bool = False) -> bytes:
        size = 0 if empty else rest.size
        given, left = rest.items[:size], rest.items[size:]
        for name in how.lists:
            if chosen := [item for one, item in given if one == name]:
                document.fill(name, chosen)
        if left:
            document.put(how.next_token, self._keep(Rest(rest.question, rest.template, left, rest.size)))
        if how.more:
            document.put(how.more, bool(left))
        return document.write()

    def _keep(self, rest: Rest) -> str:
        with self._lock:
            token = f"{_TOKEN}{next(self._numbers)}"
            self._rests[token] = rest
            while len(self._rests) > KEPT:
                self._rests.popitem(last=False)
        return token


def _question(how: Paging, operation: OperationModel, params: dict[str, Any]) -> str:
    kept = {key: value for key, value in params.items() if key not in how.asked}
    return json.dumps([operation.name, kept], default=str, sort_keys=True)


def named(params: dict[str, Any]) -> bool:
    """Return True if the request names resources: AWS answers that without pages."""
    return any(value and isinstance(value, list) and _NAMES.search(key) for key, value in params.items())
