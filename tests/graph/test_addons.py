"""Add-ons and charts over the graph."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from infra.campaign.launch import STEWARD, steward_pod
from infra.cluster.gang import GangJob, jobset
from infra.monitoring.alerts import alertmanager_config, rule_groups
from infra.monitoring.dashboards import dashboards
from infra.monitoring.exporters import exporters
from infra.plan import catalogue
from infra.stack.rules import findings
from tests.example import example_spec
from tests.graph.engine import Graph, campaign_graph
from tests.graph.test_rules import damaged


def releases(graph: Graph) -> dict[str, dict[str, Any]]:
    return {node.name: node.inputs for node in graph.of("Release")}


def test_a_campaign_has_the_charts_that_its_spec_asks_for(campaign: Graph, full: Graph) -> None:
    needed = {"jobset", "nvidia-device-plugin", "aws-efa-k8s-device-plugin"}
    assert set(releases(campaign)) == needed | {"dcgm-exporter", "kube-prometheus-stack"}
    assert set(releases(full)) == needed | {"dcgm-exporter", "kueue", "kube-prometheus-stack"}
    bare = campaign_graph(example_spec(addons={"dcgm_exporter": False, "node_monitoring": False, "prometheus": False}))
    assert set(releases(bare)) == needed
    assert "eks-node-monitoring-agent" not in {node.name for node in bare.of("Addon")}


def test_a_pinned_add_on_has_its_build_and_another_kubernetes_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {"1.36": "v1.23.1-eksbuild.1", "1.35": "v1.22.0-eksbuild.1"}
    addons = catalogue.addons()
    pinned = tuple(one.model_copy(update={"versions": pins if one.name == "vpc-cni" else {}}) for one in addons)
    monkeypatch.setattr(catalogue, "addons", lambda: pinned)
    for version, pin in pins.items():
        graph = campaign_graph(example_spec(kubernetes=version))
        assert graph.one("Addon", "vpc-cni").inputs["addonVersion"] == pin
        assert "addonVersion" not in graph.one("Addon", "coredns").inputs


def test_add_ons_of_the_newest_kubernetes_are_pinned_with_their_source_or_left_to_eks() -> None:
    graph = campaign_graph(example_spec())
    made: dict[str, Any] = {node.name: node.inputs.get("addonVersion") for node in graph.of("Addon")}
    assert made["vpc-cni"] and made["kube-proxy"].startswith("v1.36.") and made["coredns"]
    for addon in catalogue.addons():
        assert bool(addon.versions) == bool(addon.source), addon.name
        assert all(build.startswith("v") and "-eksbuild." in build for build in addon.versions.values())


def test_every_chart_is_pinned_and_none_can_leave_a_bill_behind() -> None:
    for chart in catalogue.charts():
        assert chart.version and not chart.version.startswith(("v", "^", "~", ">"))
        assert chart.chart.startswith("oci://") != bool(chart.repository)
        text = json.dumps(chart.values)
        assert "LoadBalancer" not in text and "volumeClaimTemplate" not in text, chart.name
        assert '"persistence": {"enabled": true' not in text, chart.name


def test_without_a_way_out_every_chart_pulls_from_the_mirror() -> None:
    mirror = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror"
    addons = {"image_mirror": mirror, "prometheus": True, "kueue": True}
    graph = campaign_graph(example_spec(network={"egress": "endpoints"}, addons=addons))
    assert len(releases(graph)) == 6
    for name, inputs in releases(graph).items():
        assert mirror in json.dumps(inputs["values"]), f"{name} would be pulled from a public registry"
    assert releases(graph)["aws-efa-k8s-device-plugin"]["values"]["image"] == {
        "repository": f"{mirror}/eks/aws-efa-k8s-device-plugin"
    }
    assert mirror not in json.dumps([chart.values for chart in catalogue.charts()]), "the catalogue itself is untouched"


def test_eks_repairs_the_system_node_and_never_a_gpu_node(campaign: Graph) -> None:
    repairs = {n.name: n.inputs["nodeRepairConfig"]["enabled"] for n in campaign.of("NodeGroup")}
    assert repairs == {"gpu-nodes": False, "system-nodes": True}, "GPU nodes are the steward's"
    agent = campaign.one("Addon", "eks-node-monitoring-agent")
    assert campaign.comes_after(agent, campaign.one("NodeGroup", "system-nodes"))


@pytest.mark.parametrize("way", ["device-plugin", "dra"])
def test_one_alone_hands_out_efa_devices_and_pods_ask_that_one(way: str) -> None:
    graph = campaign_graph(example_spec(addons={"efa": way}))
    plugin, driver = "aws-efa-k8s-device-plugin" in releases(graph), "aws-dranet" in releases(graph)
    assert (plugin, driver) == (way == "device-plugin", way == "dra")
    assert releases(graph)["nvidia-device-plugin"]["values"]["mofedEnabled"] is False
    gang = GangJob(
        name="a1", campaign="example", attempt=1, image="i@sha256:0", code_digest="c", nodes=4, ranks_per_node=8,
        accelerators=8, efa_interfaces=32, efa_by_claim=way == "dra", command=("run",), config_map="m",
        grace_seconds=60,
    )  # fmt: skip
    pod = jobset(gang)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    if way == "device-plugin":
        assert resources["limits"]["vpc.amazonaws.com/efa"] == "32" and "resourceClaims" not in pod
        assert not graph.of("ResourceClaimTemplate")
        return
    (claim,) = graph.of("ResourceClaimTemplate")
    (request,) = claim.inputs["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": releases(graph)["aws-dranet"]["values"]["deviceClass"]["name"],
        "allocationMode": "ExactCount",
        "count": 32,
    }
    assert "vpc.amazonaws.com/efa" not in resources["limits"] and resources["claims"] == [{"name": "efa"}]
    assert pod["resourceClaims"] == [{"name": "efa", "resourceClaimTemplateName": claim.inputs["metadata"]["name"]}]


def test_a_queue_never_holds_what_has_no_queues_name(full: Graph) -> None:
    text = releases(full)["kueue"]["values"]["managerConfig"]["controllerManagerConfigYaml"]
    assert "manageJobsWithoutQueueName: false" in text


def test_the_mpi_operator_is_there_on_request_and_stays_within_its_namespace(campaign: Graph) -> None:
    assert not [node for node in campaign.of("Deployment") if node.name == "mpi-operator"]
    mirror = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror"
    public, mirrored = (
        campaign_graph(example_spec(addons={"mpi_operator": True, "image_mirror": one})) for one in (None, mirror)
    )
    pin = catalogue.operators()["mpi-operator"]
    for graph, registry in ((public, "docker.io"), (mirrored, mirror)):
        pod = graph.one("Deployment", "mpi-operator").inputs["spec"]["template"]["spec"]
        assert [container["image"] for container in pod["containers"]] == [
            f"{registry}/mpioperator/mpi-operator:{pin.version}"
        ]
        assert pod["nodeSelector"] == {"bivouac.dev/pool": "system"}
    wide = public.one("ClusterRole", "mpi-operator").inputs["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in wide] == [(["priorityclasses"], ["get", "list", "watch"])]
    near = public.one("Role", "mpi-operator").inputs
    assert near["metadata"]["namespace"] == "campaign" and "*" not in json.dumps(near["rules"])
    deployment = public.one("Deployment", "mpi-operator")
    assert public.comes_after(deployment, public.one("CustomResourceDefinition", "mpi-operator"))
    assert public.comes_after(deployment, public.one("NodeGroup", "system-nodes"))


def test_a_job_that_mpirun_starts_brings_the_operator_and_the_stewards_right_to_its_kind(campaign: Graph) -> None:
    job = {
        "launcher": "mpirun", "command": ["./solve"], "checkpoints": {"format": "marker"},
        "estimates": {"steps": 10, "step_seconds": 1},
    }  # fmt: skip
    spec = example_spec(training=None, data=None, workload=job)
    graph = campaign_graph(spec)
    assert graph.comes_after(graph.one("Deployment", "mpi-operator"), graph.one("NodeGroup", "system-nodes"))
    told = {one.name: one for one in graph.of("ValidatingAdmissionPolicyBinding")}
    assert set(told) == {"pods", "steward"}
    for bound in told.values():
        assert graph.comes_after(graph.one("RoleBinding", "mpi-operator"), bound), "it makes pods with our account"

    def kinds(of: Graph) -> set[str]:
        (role,) = [one for one in of.of("Role") if one.name == "steward" and "rules" in one.inputs]
        return {kind for rule in role.inputs["rules"] for kind in rule["resources"]}

    assert kinds(graph) - kinds(campaign) == {"mpijobs"}
    assert not [finding for finding in findings(graph.asked, spec) if finding.rule == "pod-admission"]
    free = damaged(graph.asked, "RoleBinding mpi-operator", None, depends=frozenset(), refers={})
    assert any("before its bounds" in finding.message for finding in findings(free, spec))


def kept(job: dict[str, Any], discovered: dict[str, str]) -> bool:
    """Whether Prometheus scrapes what it discovered with these labels: every `keep` of the job must match."""
    rules = [rule for rule in job["relabel_configs"] if rule.get("action") == "keep"]
    return all(
        re.fullmatch(rule["regex"], ";".join(discovered.get(label, "") for label in rule["source_labels"]))
        for rule in rules
    )


def test_the_gpus_exporter_has_our_counters_and_prometheus_no_series_that_nothing_reads(full: Graph) -> None:
    counters = releases(full)["dcgm-exporter"]["values"]["customMetrics"].splitlines()
    assert any(line.startswith("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, counter, ") for line in counters)
    stack = releases(full)["kube-prometheus-stack"]["values"]
    off = ("kubelet", "kubeApiServer", "kubeProxy", "kubeStateMetrics", "coreDns")
    assert not any(stack[name]["enabled"] for name in off)
    (rule,) = stack["prometheus-node-exporter"]["prometheus"]["monitor"]["metricRelabelings"]
    names = exporters()["node-exporter"].metrics
    assert all(re.fullmatch(rule["regex"], name) for name in names), "what is read is kept"
    assert rule["action"] == "keep" and not re.fullmatch(rule["regex"], "node_cpu_seconds_total")


def test_the_alerts_are_in_the_charts_values_as_prometheus_and_alertmanager_take_them(full: Graph) -> None:
    (stack,) = (one for name, one in releases(full).items() if name == "kube-prometheus-stack")
    assert stack["values"]["additionalPrometheusRulesMap"] == {"bivouac": rule_groups()}
    assert stack["values"]["alertmanager"]["config"] == alertmanager_config()
    awaited = {name: not one["skipAwait"] for name, one in releases(full).items()}
    assert not awaited.pop("kube-prometheus-stack") and all(awaited.values()), "a training needs no monitoring to run"
    assert stack["values"]["alertmanager"]["alertmanagerSpec"]["nodeSelector"] == {"bivouac.dev/pool": "system"}


def test_grafana_comes_with_its_dashboards_and_only_if_the_spec_asks_for_it(full: Graph) -> None:
    (stack,) = (one for name, one in releases(full).items() if name == "kube-prometheus-stack")
    assert stack["values"]["grafana"]["enabled"] is False and "dashboards" not in stack["values"]["grafana"]
    graph = campaign_graph(example_spec(addons={"grafana": True}))
    grafana = releases(graph)["kube-prometheus-stack"]["values"]["grafana"]
    assert grafana["enabled"] is True and grafana["nodeSelector"] == {"bivouac.dev/pool": "system"}
    assert grafana["dashboards"]["bivouac"].keys() == dashboards().keys()


def test_prometheus_writes_where_the_spec_says_with_the_role_that_is_lent_to_it(full: Graph) -> None:
    url = "https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1/api/v1/remote_write"
    role = "arn:aws:iam::123456789012:role/bivouac-metrics"
    graph = campaign_graph(example_spec(addons={"remote_write": {"url": url, "role": role}}))
    (row,) = releases(graph)["kube-prometheus-stack"]["values"]["prometheus"]["prometheusSpec"]["remoteWrite"]
    assert (row["url"], row["sigv4"]) == (url, {"region": "us-east-1"})
    lent = graph.one("PodIdentityAssociation", "kube-prometheus-stack-prometheus").inputs
    assert (lent["namespace"], lent["serviceAccount"], lent["roleArn"]) == ("monitoring", lent["serviceAccount"], role)
    (stack,) = (one for name, one in releases(full).items() if name == "kube-prometheus-stack")
    assert "remoteWrite" not in stack["values"]["prometheus"]["prometheusSpec"]


def test_prometheus_scrapes_the_trainers_agents_the_gpus_exporters_and_the_steward(full: Graph) -> None:
    (stack,) = (one for name, one in releases(full).items() if name == "kube-prometheus-stack")
    jobs = stack["values"]["prometheus"]["prometheusSpec"]["additionalScrapeConfigs"]
    gang = GangJob(
        name="a1", campaign="example", attempt=1, image="i@sha256:0", code_digest="c", nodes=2, ranks_per_node=8,
        accelerators=8, efa_interfaces=0, command=("run",), config_map="m", grace_seconds=60,
    )  # fmt: skip
    job = jobset(gang)
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (port,) = pod["containers"][0]["ports"]
    agent = {"__meta_kubernetes_pod_container_port_name": port["name"]}
    exporter = {
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": "dcgm-exporter",
        "__meta_kubernetes_pod_container_port_name": "metrics",
    }
    other = {"__meta_kubernetes_pod_container_port_name": "metrics"}
    (steward_port,) = steward_pod("i@sha256:0", 0, 2)["containers"][0]["ports"]
    steward = {
        "__meta_kubernetes_pod_label_app": STEWARD,
        "__meta_kubernetes_pod_container_port_name": steward_port["name"],
    }
    taken = {job["job_name"]: [kept(job, pod) for pod in (agent, exporter, steward, other)] for job in jobs}
    assert taken == {
        "gpus": [False, True, False, False], "trainer": [True, False, False, False],
        "steward": [False, False, True, False],
    }  # fmt: skip
    (spaces,) = (job["kubernetes_sd_configs"] for job in jobs if job["job_name"] == "trainer")
    assert spaces == [{"role": "pod", "namespaces": {"names": [job["metadata"]["namespace"]]}}]


def test_an_alarm_has_one_topic_and_the_specs_own_comes_first(campaign: Graph) -> None:
    pager = "arn:aws:sns:us-east-1:123456789012:pager"
    paged = campaign_graph(example_spec(money={"alarm_topic_arn": pager}))
    own, theirs = (
        [
            notification["subscriberSnsTopicArns"]
            for notification in graph.one("Budget", "budget").inputs["notifications"]
        ]
        for graph in (campaign, paged)
    )
    assert {len(topics) for topics in own} == {1} and pager not in str(own)
    assert theirs == [[pager]] * len(own)
