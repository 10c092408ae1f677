"""Runs a program under Pulumi's mocks and keeps the whole graph: inputs, edges, options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pulumi
from pulumi.runtime import mocks, resource, rpc, settings
from pulumi.runtime.proto import source_pb2

from infra.engine.drift import resource_of
from infra.spec.campaign import Spec
from infra.stack import rules
from infra.stack.program import program as bivouac
from infra.stack.settings import CampaignSettings, FoundationSettings, Keeping
from tests.example import DATA_DIGEST, DEADLINE

ACCOUNT = "123456789012"
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
# Each resource tells the engine its place in the source. Here nobody reads it, and it takes a quarter of the time.
resource._get_stack_trace = source_pb2.StackTrace
CODE = "c" * 64
DRIVER = {"vpc_id": "vpc-0123456789abcdef0", "cidr": "10.7.0.0/16", "route_table_ids": ["rtb-0123456789abcdef0"]}


@dataclass(frozen=True)
class Node:
    urn: str
    type: str
    name: str
    inputs: dict[str, Any]
    provider: str
    parent: str
    dependencies: frozenset[str]
    deleted_with: str
    ignore_changes: tuple[str, ...]
    custom: bool

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


@dataclass
class Graph:
    nodes: dict[str, Node] = field(default_factory=dict)
    asked: rules.Graph = field(default_factory=rules.Graph)
    """The same, as the product's own rules look at it."""
    outputs: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: str) -> list[Node]:
        """Resources whose type ends in `:kind`, for instance `NodeGroup`."""
        return [node for node in self.custom if node.type.endswith(f":{kind}")]

    def one(self, kind: str, name: str) -> Node:
        nodes = [node for node in self.of(kind) if node.name == name]
        assert len(nodes) == 1, f"{len(nodes)} {kind} called {name}; there are {[node.name for node in self.of(kind)]}"
        return nodes[0]

    @cached_property
    def custom(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.custom]

    def comes_after(self, later: Node, earlier: Node) -> bool:
        """Whether `later` is made after `earlier`, and so falls before it."""
        seen, todo = set[str](), [later.urn]
        while todo:
            urn = todo.pop()
            if urn == earlier.urn:
                return True
            if urn in seen or urn not in self.nodes:
                continue
            seen.add(urn)
            todo += self._before(self.nodes[urn])
        return False

    @staticmethod
    def _before(node: Node) -> Iterator[str]:
        yield from node.dependencies
        if node.provider:
            yield node.provider.rpartition("::")[0]


class _World(mocks.Mocks):
    """Answers as AWS would: names and ids that tell where they come from."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        kind = args.typ.rpartition(":")[2]
        state = dict(args.inputs)
        if not args.custom:
            return None, state
        label = state.get("name") or state.get("bucket") or args.name
        state.setdefault("arn", f"arn:aws:mock:us-east-1:{ACCOUNT}:{kind}/{label}")
        state.setdefault("name", label)
        if kind == "Cluster":
            state |= {
                "endpoint": "https://control.plane",
                "certificateAuthority": {"data": "Q0E="},
                "vpcConfig": {**state["vpcConfig"], "clusterSecurityGroupId": "sg-cluster"},
            }
        elif kind == "LaunchTemplate":
            state["latestVersion"] = 1
        elif kind == "LustreFileSystem":
            state |= {"dnsName": "fs.example", "mountName": "abcd"}
        elif kind == "Repository":
            state["repositoryUrl"] = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{label}"
        return f"{kind}-{args.name}", state

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        if args.token == "aws:index/getCallerIdentity:getCallerIdentity":
            return {"accountId": ACCOUNT, "arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/ci/run-7"}, []
        if args.token == "aws:ssm/getParameter:getParameter":
            return {"value": "ami-" + args.args["name"].replace("/", "-")}, []
        raise AssertionError(f"unexpected look-up {args.token}")


class _Recorder(mocks.MockMonitor):
    def __init__(self) -> None:
        super().__init__(_World())
        self.graph = Graph()

    def RegisterResource(self, request: Any) -> Any:
        response = super().RegisterResource(request)
        if request.type != "pulumi:pulumi:Stack":
            self.graph.asked.add(resource_of(request, response.urn))
            self.graph.nodes[response.urn] = Node(
                urn=response.urn,
                type=request.type,
                name=request.name,
                inputs=rpc.deserialize_properties(request.object),
                provider=request.provider or request.providers.get(request.type.partition(":")[0], ""),
                parent=request.parent,
                dependencies=frozenset(request.dependencies),
                deleted_with=request.deletedWith,
                ignore_changes=tuple(request.ignoreChanges),
                custom=request.custom,
            )
        return response


def build(program: Callable[[], None], config: dict[str, str] | None = None) -> Graph:
    """The graph of a program; raises what the program raises."""
    recorder = _Recorder()
    mocks.set_mocks(recorder.mocks, project="bivouac", stack="test", preview=False, monitor=recorder)
    pulumi.runtime.set_all_config(config or {})
    root: Any = settings.get_root_resource()
    root.outputs.clear()

    @pulumi.runtime.test
    def run() -> pulumi.Output[None]:
        program()
        return pulumi.Output.from_input(dict(root.outputs)).apply(recorder.graph.outputs.update)

    run()
    return recorder.graph


def campaign_graph(spec: Spec, **more: str | None) -> Graph:
    """The campaign stack of a spec; `more` goes into its settings."""
    settings = CampaignSettings.model_validate(
        {"spec": spec, "deadline": DEADLINE, "data_digest": DATA_DIGEST, "closer_code": CODE, **more}
    )
    return build(bivouac, settings.to_config())


def foundation_with(**keeping: Any) -> Graph:
    """The foundation as campaigns together want it."""
    wanted = FoundationSettings(account=ACCOUNT, region="us-east-1", keeping=Keeping(**keeping))
    return build(bivouac, wanted.to_config())


def held(graph: Graph) -> list[tuple[str, dict[str, Any]]]:
    """(role, statement) of every policy that stands in a role itself."""
    return [(n.name, one) for n in graph.of("RolePolicy") for one in json.loads(n.inputs["policy"])["Statement"]]
