"""Bivouac: one ephemeral GPU cluster for each training campaign."""

import os

# Pulumi's gRPC restarts its threads in every forked child, and Ansible's runner forks before it executes: the child
# then sometimes dies of a closed descriptor. gRPC reads the variable on import, so it is set before any other import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
