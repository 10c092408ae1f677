"""Harm to processes and mounts of a running machine, from outside of its containers."""
