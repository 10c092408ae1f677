"""Answers of the emulated AWS that are read, changed and written again."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from moto.core.utils import get_service_model

from infra.rehearsal.aws.strict import document

EC2 = "http://ec2.amazonaws.com/doc/2016-11-15/"
IAM = "https://iam.amazonaws.com/doc/2010-05-08/"


@pytest.mark.parametrize(
    ("service", "operation", "member", "body"),
    [
        ("ec2", "DescribeVolumes", "Volumes", f'<R xmlns="{EC2}"><volumeSet><item/><item/></volumeSet></R>'),
        (
            "iam",
            "ListRoles",
            "Roles",
            f'<R xmlns="{IAM}"><ListRolesResult><Roles><member/></Roles></ListRolesResult></R>',
        ),
        ("ec2", "DescribeVolumes", "Volumes", "<R><volumeSet><item/></volumeSet></R>"),
    ],
)
def test_an_answer_is_written_in_its_own_namespace_and_nothing_that_others_share_changes(
    service: str, operation: str, member: str, body: str
) -> None:
    shared = dict(ElementTree._namespace_map)  # type: ignore[attr-defined]
    model = get_service_model(service).operation_model(operation)
    read = document.read(body.encode(), model)
    items = read.items(member)
    read.fill(member, items[:1])
    read.put("NextToken" if service == "ec2" else "Marker", "more")
    written = read.write()
    assert ElementTree._namespace_map == shared  # type: ignore[attr-defined]
    assert b":" not in written.replace(EC2.encode(), b"").replace(IAM.encode(), b""), "no prefixes"
    again = document.read(written, model)
    assert len(items) >= len(again.items(member)) == 1
    assert again.value("NextToken" if service == "ec2" else "Marker") == "more"
