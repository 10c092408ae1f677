"""Health checks before training: each node against its profile, and the fabric by a collective."""
