"""What is attached to an issue names no account, no key, no machine and nobody; the rest stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aws.transcript import Stripper, Transcript, holds

SESSION = "FwoGZXIvYXdzEBYaDKq3zT9Qn0" + "Zm9vYmFyYmF6" * 8 + "=="
SAMPLES = (
    ("arn:aws:iam::482915037261:role/bivouac_operator", "arn:aws:iam::<account-1>:role/bivouac_operator"),
    ("arn:aws:sts::482915037261:assumed-role/Admin_1a/ada.l@lab.example",
     "arn:aws:sts::<account-1>:assumed-role/Admin_1a/<email-1>"),
    ("arn:aws:sts::482915037261:assumed-role/Admin/ada", "arn:aws:sts::<account-1>:assumed-role/Admin/<name-1>"),
    ("User: arn:aws:iam::482915037261:user/team/grace is not authorized",
     "User: arn:aws:iam::<account-1>:user/<name-1> is not authorized"),
    ("482915037261.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:ab",
     "<account-1>.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:ab"),
    ("s3://bivouac-state-482915037261-us-east-1/x and account_482915037261 (4829-1503-7261)",
     "s3://bivouac-state-<account-1>-us-east-1/x and account_<account-1> (<account-1>)"),
    ("key AKIAIOSFODNN7EXAMPLE, ASIAY34FZKBOKMUTVV7A", "key <key-1>, <key-2>"),
    (f"AWS_SESSION_TOKEN={SESSION}", "AWS_SESSION_TOKEN=<token-1>"),
    ("Bearer k8s-aws-v1.aHR0cHM6Ly9zdHMudXMtZWFzdC0x_-x", "Bearer <token-1>"),
    ("https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F2026&X-Amz-Signature=fe5f80&x=1",
     "https://b.s3.amazonaws.com/k?X-Amz-Credential=<signature-1>&X-Amz-Signature=<signature-2>&x=1"),
    ("node ip-10-42-1-7.ec2.internal, ec2-3-80-1-2.compute-1.amazonaws.com", "node <host-1>, <host-2>"),
    ("https://9D84B7A0C3F2E1B65A4D3C2B1A0F9E8D.gr7.us-east-1.eks.amazonaws.com:443",
     "https://<endpoint-1>.gr7.us-east-1.eks.amazonaws.com:443"),
    ("from 198.51.100.23 to 10.42.3.9:988, again 198.51.100.23/32.", "from <ip-1> to <ip-2>:988, again <ip-1>/32."),
    ("2001:db8:85a3::8a2e:370:7334 and fe80::1", "<ip-1> and <ip-2>"),
    ("alarm to ada+aws@lab.example.org", "alarm to <email-1>"),
)  # fmt: skip
READABLE = (
    "2026-11-23T13:49:46Z launch: attempt 2 went on from step 450 of 1,500, loss 4.2193",
    "i-0a1b2c3d4e5f60718 in vpc-0123456789abcdef0, fs-0123456789abcdef0, cr-0123456789abcdef0",
    "driver 580.159.03, torch 2.13.0, efa 1.49.0, 0.0.0.0/0, 127.0.0.1, 169.254.169.254",
    "13:49:46 supervise  bivouac::stack, aws:ec2/instance:Instance, pulumi:pulumi:Stack",
    "1401298112 bytes, 3.29 USD, sha256:9f86d081884c7d659a2feaa0c55ad015",
    "libnccl-2.28.9-1+cuda13.0, v1.22.4-eksbuild.3, amazon-eks-node-al2023-x86_64-nvidia-1.36-v20260728",
)


@pytest.mark.parametrize(("raw", "stripped"), SAMPLES, ids=[stripped[:40] for _, stripped in SAMPLES])
def test_what_names_somebody_is_replaced(raw: str, stripped: str) -> None:
    assert Stripper().stripped(raw) == stripped


@pytest.mark.parametrize("line", READABLE)
def test_what_a_reader_of_an_issue_needs_stays(line: str) -> None:
    assert Stripper().stripped(line) == line


def test_one_thing_has_one_name_in_all_lines_and_another_has_another() -> None:
    stripper = Stripper()
    first, again, other = (stripper.stripped(one) for one in ("482915037261", "4829-1503-7261", "111122223333"))
    assert (first, again, other) == ("<account-1>", "<account-1>", "<account-2>")
    assert stripper.stripped("10.0.0.1 10.0.0.2 10.0.0.1") == "<ip-1> <ip-2> <ip-1>"


def test_words_of_this_machine_are_replaced_whole_and_short_ones_are_left(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "transcript.txt", ["lab-box-7", "/home/lovelace", "wJalrXUtnFEMI/K7MDENG", "a"])
    transcript.write("lab-box-7 runs\n/home/lovelace/results wJalrXUtnFEMI/K7MDENG as 482915037261\n")
    transcript.close()
    text = transcript.path.read_text()
    assert text == "<private-1> runs\n<private-3>/results <private-2> as <account-1>\n"
    assert transcript.path.stat().st_mode & 0o077 == 0


def test_an_account_number_that_a_line_break_hides_is_found() -> None:
    assert holds("role of 48291\n  5037261", "482915037261") and holds("4829-1503-7261", "482915037261")
    assert not holds("<account-1> 48291503726", "482915037261")
