"""A job's checkpoints from its own folder to committed steps, and back: by node 0 for all, or by each node."""
