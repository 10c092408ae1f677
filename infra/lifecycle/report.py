from __future__ import annotations


def run(context):
    return {}
