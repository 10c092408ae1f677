"""InfiniBand and RoCE: a node's adapters, the fabric between nodes, and NCCL's settings."""
