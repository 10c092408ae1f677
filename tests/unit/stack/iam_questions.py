"""Requests to AWS written down by hand, and whether IAM's rules grant them. No helper of the product names an ARN here,
or an action."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.rehearsal.aws.iam.policies import Question, allowed
from infra.spec.campaign import Spec
from infra.stack.access import building, closing, freeze, policies
from infra.stack.access.ceiling import ceiling, foundation_ceiling
from tests.example import example_spec

Ask = tuple[str, str, dict[str, str]]
"""An action, a resource, and its context, in which several values of a key stand with commas between."""
Document = dict[str, Any]
R, A = "us-east-1", "123456789012"
ELSEWHERE, STRANGER = "eu-west-1", "999999999999"
STATE, DATA, ARCHIVE = (f"arn:aws:s3:::bivouac-{kind}-{A}-{R}" for kind in ("state", "data", "archive"))
BOUNDARY, FREEZE = (f"arn:aws:iam::{A}:policy/bivouac_{name}_{R}" for name in ("boundary", "freeze"))
KEY = f"arn:aws:kms:{R}:{A}:key/11111111-2222-3333-4444-555555555555"
GROUP = f"arn:aws:eks:{R}:{A}:nodegroup/bivouac-train/bivouac-train-gpu/9a"
SCALING = f"arn:aws:autoscaling:{R}:{A}:autoScalingGroup:7:autoScalingGroupName/eks-bivouac-train-gpu-9a"
SCHEDULE = f"arn:aws:scheduler:{R}:{A}:schedule/default/bivouac-train-"
SECRET, PARAMETER = f"arn:aws:secretsmanager:{R}:{A}:secret:", f"arn:aws:ssm:{R}:{A}:parameter/"
TOPIC = f"arn:aws:sns:{R}:{A}:bivouac_notices"
_REPOSITORIES = ("bivouac/trainer", "bivouac/steward", "bivouac/base", "team/base")
TRAINER, STEWARD, BASES, BASE = (f"arn:aws:ecr:{R}:{A}:repository/{name}" for name in _REPOSITORIES)
PULL = "ecr:BatchCheckLayerAvailability ecr:BatchGetImage ecr:GetDownloadUrlForLayer"
PUSH = "ecr:CompleteLayerUpload ecr:DescribeImages ecr:InitiateLayerUpload ecr:PutImage ecr:UploadLayerPart"
TAGGED = {
    "aws:ResourceTag/eks:cluster-name": "bivouac-train",
    "aws:ResourceTag/eks:nodegroup-name": "bivouac-train-gpu",
}
OURS = "aws:ResourceTag/bivouac:campaign"
BUILDER = {"aws:ResourceTag/bivouac:role": "builder"}
LISTS = {"s3:prefix": "campaigns/train/"}
S3_KEY = {"kms:ViaService": f"s3.{R}.amazonaws.com"}
VIA = {**S3_KEY, "kms:EncryptionContext:aws:s3:arn": STATE}


def ec2(kind: str, identifier: str = "x-0123456789abcdef0") -> str:
    return f"arn:aws:ec2:{R}:{A}:{kind}/{identifier}"


def role(name: str) -> str:
    return f"arn:aws:iam::{A}:role/{name}"


def ask(action: str, resource: str, context: dict[str, str] | None = None) -> Ask:
    return action, resource, context or {}


def may(asked: Ask, arn: str, *layers: Sequence[Document]) -> bool:
    """Whether each layer has a policy that allows it: the principal's own, and the boundary that it is under."""
    action, resource, given = asked
    context = {key.lower(): value.split(",") for key, value in given.items()}
    context |= {"aws:principalaccount": [A], "aws:principalarn": [arn], "aws:securetransport": ["true"]}
    return all(allowed(list(layer), Question(action, resource, context)) for layer in layers)


def granted(asks: Iterable[Ask], arn: str, *layers: Sequence[Document]) -> list[Ask]:
    return [one for one in asks if may(one, arn, *layers)]


def refused(asks: Iterable[Ask], arn: str, *layers: Sequence[Document]) -> list[Ask]:
    return [one for one in asks if not may(one, arn, *layers)]


def written(statements: Sequence[policies.Statement]) -> list[Document]:
    return [json.loads(policies.document(statements))]


BEGINNINGS = {"s3:prefix", "kms:EncryptionContext:aws:s3:arn", "aws:TagKeys"}
"""Keys of which a policy names how their values begin."""


@dataclass(frozen=True)
class Grant:
    """Every action on every resource, where all of the context is as told; on none of the neighbours."""

    actions: str
    resources: tuple[str, ...]
    context: dict[str, str] = field(default_factory=dict)
    neighbours: tuple[str, ...] = ()

    def asked(self) -> Iterator[Ask]:
        for action in self.actions.split():
            for resource in self.resources:
                yield action, resource, self.context

    def missed(self) -> Iterator[Ask]:
        for action, resource, context in self.asked():
            for known, other in ((A, STRANGER), (R, ELSEWHERE)):
                if known in resource:
                    yield action, resource.replace(known, other), context
            for key in context:
                yield action, resource, {one: value for one, value in context.items() if one != key}
                yield action, resource, {**context, key: f"x{context[key]}"}
                if key not in BEGINNINGS:
                    yield action, resource, {**context, key: f"{context[key]}-2"}
        for action in self.actions.split():
            for resource in self.neighbours:
                yield action, resource, self.context


def job(**secrets: dict[str, str]) -> Spec:
    workload = {
        "script": "/train.py", "checkpoints": {"format": "dcp"}, "estimates": {"steps": 10, "step_seconds": 1},
        "secrets": secrets,
    }  # fmt: skip
    return example_spec(campaign="train", training=None, data=None, workload=workload)


SPEC = example_spec(campaign="train", money={"freeze_roles": ["ci"]})
WITH_SECRETS = job(
    TOKEN={"secret": "bivouac_job/token"},
    OTHER={"secret": f"{SECRET}bivouac_job/other-AbC123", "key": "password"},
    KEY={"parameter": "/bivouac_job/key"},
)
WHERE = policies.AccountPlace(A, R)
LIMIT = written(ceiling(WHERE))
"""The boundary of campaigns' roles, under which operators make roles."""
FOUNDERS = written(foundation_ceiling(WHERE))
"""The boundary of the foundation's own roles."""
OWNED = {"aws:ResourceTag/bivouac:foundation": "true"}
"""The foundation's own key."""
SOMEBODY = role("bivouac-train-x")
ANYTHING = written([{"Effect": "Allow", "Action": "*", "Resource": "*"}])
"""The policy of somebody whom the boundary alone keeps from everything."""
OWN = {
    "archive": written(policies.archive(SPEC)),
    "budget": written(freeze.freezing(SPEC)),
    "builder": written(building.builder(WHERE)),
    "builder-guard": written(building.builder_guard(WHERE)),
    "closer": written(closing.closer(WHERE)),
    "cluster": written(policies.cluster_secrets(KEY)),
    "guard": written(policies.guard(SPEC)),
    "steward": written(policies.steward(SPEC)),
    "trainer": written(policies.trainer(WITH_SECRETS)),
}
"""Role -> its own policies, as the graph's tests find them attached."""


SHARED = {
    "builder": "bivouac_build_us-east-1",
    "builder-guard": "bivouac_build_guard_us-east-1",
    "closer": "bivouac_closer_us-east-1",
}


def arn_of(name: str) -> str:
    return role(SHARED.get(name, f"bivouac-train-{name}"))


def limit_of(name: str) -> list[Document]:
    return FOUNDERS if name in SHARED else LIMIT
