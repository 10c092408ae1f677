"""Tell apart what an answer through the API server's way to a service means: no right, no such service, no answer."""

from __future__ import annotations

import json
from datetime import timedelta

from infra.errors import BivouacError, PermanentError, TemporaryError, UserError

_PAUSE = timedelta(seconds=15)
_PASSING = (408, 429)  # refusals of a moment: https://www.rfc-editor.org/rfc/rfc9110#section-15.5.9


def refusal(program: str, status: int, body: bytes) -> BivouacError:
    """Return the error for an answer that is no success. `program`: Prometheus or Alertmanager.
    https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/"""
    fact = f"status {status}: {reason_of(body)}"[:300]
    if status in (401, 403):
        cure = "use the role that ran `bivouac run`, or one that may `get`, `create` and `delete` on `services/proxy`"
        return UserError(f"the cluster does not let these credentials ask {program}", seen=fact, cure=cure)
    if status == 404:
        cure = "`addons.prometheus` installs it; `bivouac status NAME` says whether the cluster is complete"
        return UserError(f"the cluster has no {program}", seen=fact, cure=cure)
    if 400 <= status < 500 and status not in _PASSING:
        return PermanentError(f"{program} refuses the request", seen=fact, cure="a retry changes nothing; read why")
    return silent(program, fact)


def silent(program: str, reason: str) -> TemporaryError:
    """Return the error for no answer."""
    cure = "give the command again; `addons.prometheus` must be on"
    return TemporaryError(f"{program} does not answer", seen=reason[:300], cure=cure, delay=_PAUSE)


def reason_of(body: bytes) -> str:
    """Return what Prometheus, Alertmanager, or the API server before them, says of a refusal."""
    try:
        answer = json.loads(body)
        return str((answer.get("error") or answer.get("message")) if isinstance(answer, dict) else answer)[:300]
    except ValueError:
        return body[:300].decode(errors="replace")
