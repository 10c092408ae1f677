"""Bivouac: one ephemeral GPU cluster for each training campaign."""

import os

# Pulumi's gRPC restarts its threads in every forked child, and Ansible's runner forks before it executes: the child
# then dies of a closed descriptor, now and then. Read when gRPC is first imported, so set before anything here is.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
