"""The differences between a rehearsal and AWS, for every report."""

from __future__ import annotations

from typing import Any

EMULATED = (
    "AWS APIs: moto, extended (EKS, FSx, ECR layers, SSM commands, schedules); IAM is enforced",
    "AWS's delays, page sizes and chance errors: drawn from a seed, about ten times shorter than AWS's",
    "pulumi-aws and pulumi-kubernetes plugins: table-driven plugins of the kit, same resource inputs, real engine",
    "EC2 instances and kubelets: nodelets in namespaces of their own; pods are processes with their own root",
    "a pod's user: a name inside its user namespace, without root's rights; a node refuses what it cannot provide",
    "GPUs, NCCL and EFA: CPU, gloo and a bridge; device counts are those of the instance type",
    "NVMe and FSx for Lustre: folders; lazy imports of an FSx data repository are complete at once",
    "AMIs: the builder's disk as a folder; machines of the AMI start with a copy of it",
    "container images: the node's own files are the base layer, the top layer goes through the registry",
    "a job's secrets: values of a local file, under their names in the emulated Secrets Manager and Systems Manager",
    "notices: the emulated topic takes them, and no mail goes out; a webhook is called only if the site can reach it",
    "cluster DNS: hosts files kept current from EndpointSlices",
    "CodeBuild: a build is a process of the site with the project's role; this machine stands in for the image",
)
NOT_REHEARSED = (
    "Helm charts but for jobset, Prometheus and Alertmanager: recorded, their pods do not run",
    "EKS add-ons: recorded with their state; vpc-cni, kube-proxy, coredns and the CSI drivers do not run",
    "packages of the closer's build: the image that stands in has them, so nothing is fetched from PyPI",
    "packages of the node image: drivers, EFA, NCCL, GDRCopy, Lustre client, DCGM",
    "GPU health, NVLink, fabric bandwidth",
    "AWS's capacity, quotas and prices at the moment",
    "routing, NAT, peering, security groups: every address of a site is on one link",
    "seccomp profiles; unless root rehearses, file owners: to the disks of a site all its pods are one user",
    "encryption: keys are made and IAM checks their use, but nothing is encrypted with them",
    "shell scripts in user data (Lustre's client settings): a nodelet reads the NodeConfig only",
    "EKS's own node repair; the spending that a budget sees: it is set by hand",
)


def statement() -> dict[str, Any]:
    return {"emulated": list(EMULATED), "not_rehearsed": list(NOT_REHEARSED)}
