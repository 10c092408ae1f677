"""Addresses of a site, for the host side and the inside."""

from __future__ import annotations

BRIDGE = "camp0"
GATEWAY = "10.77.0.1"
AWS_ADDRESS = "10.77.0.2"
AWS_PORT = 5000
AWS_ENDPOINT = f"http://{AWS_ADDRESS}:{AWS_PORT}"
CONTROL_PLANE_ADDRESS = "10.77.0.10"
ON_LINK = "10.0.0.0/8"
"""Every private address is on the bridge: a rehearsal has no router."""
REGION = "us-east-1"
