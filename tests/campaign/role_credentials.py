"""Inside a site: a session with a role's own rights, as its workloads have them."""

from __future__ import annotations

import json
import os

import boto3


def of_role(name: str) -> boto3.Session:
    """Assume a role as the emulator's agent, which stands for the services that the role trusts."""
    folder = os.environ["BIVOUAC_SITE_FOLDER"]
    with open(os.path.join(folder, "aws", "credentials.json")) as file:
        keys = json.load(file)
    agent = boto3.client(
        "sts",
        aws_access_key_id=keys["agent"]["access_key_id"],
        aws_secret_access_key=keys["agent"]["secret_access_key"],
    )
    arn = f"arn:aws:iam::{keys['account']}:role/{name}"
    credentials = agent.assume_role(RoleArn=arn, RoleSessionName="look")["Credentials"]
    return boto3.Session(
        credentials["AccessKeyId"],
        credentials["SecretAccessKey"],
        credentials["SessionToken"],
        region_name=keys["region"],
    )
