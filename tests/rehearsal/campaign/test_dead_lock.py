"""A teardown of a stack that a dead engine left locked, whose cluster nobody can ask any more."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from infra.bake.foundation import campaign_settings
from infra.campaign import teardown
from infra.campaign.stages import StageStep, run_step
from infra.engine.engine import Engine
from infra.folders import writable
from infra.record.events import Stage
from infra.record.payloads.outputs import TeardownOutput
from infra.spec.names import PROJECT
from tests.worlds.campaign_site import camp

NOBODY = 2**22 + 1
"""Above the greatest process id that Linux gives."""


@pytest.mark.nightly
def test_a_teardown_passes_the_lock_of_a_dead_engine_though_the_cluster_is_gone(tmp_path: Path) -> None:
    """`up` hung on the API server, its engine was ended by force, then came `bivouac down`."""
    with camp(tmp_path) as camped, camped.opened() as context:
        engine = Engine(context, writable(context.results / "pulumi"))
        stack = engine.stack(context.names.stack, campaign_settings(context, "0" * 64).to_config())

        def urn(kind: str, name: str) -> str:
            return f"urn:pulumi:{stack.name}::{PROJECT}::{kind}::{name}"

        root, provider, space = "pulumi:pulumi:Stack", "pulumi:providers:kubernetes", "kubernetes:core/v1:Namespace"
        asks = {"custom": True, "id": "0", "type": provider, "urn": urn(provider, "k"), "inputs": {}, "outputs": {}}
        held = [
            {"custom": False, "type": root, "urn": urn(root, f"{PROJECT}-{stack.name}")},
            asks,
            {**asks, "id": "campaign", "type": space, "urn": urn(space, "campaign"), "provider": f"{asks['urn']}::0"},
        ]
        exported = stack.export_stack()
        exported.deployment = {**(exported.deployment or {}), "resources": held}
        stack.import_stack(exported)
        lock = {"pid": NOBODY, "username": "me", "hostname": os.uname().nodename, "timestamp": "2026-01-01T00:00:00Z"}
        folder = f".pulumi/locks/organization/{PROJECT}/{stack.name}/"
        context.store.put(f"{folder}dead.json", json.dumps(lock).encode())
        step = StageStep(Stage.TEARDOWN, "everything that bills is destroyed", teardown.run)
        output = run_step(context, step)
        assert isinstance(output, TeardownOutput) and output.resources == 2, (
            "the Kubernetes object was forgotten, the rest destroyed"
        )
        assert not camped.client("s3").list_objects_v2(Bucket=context.buckets.state, Prefix=folder).get("Contents")
        assert Stage.TEARDOWN in context.state().finished_stages
