"""Checkpoints wherever they lie, for people: listed, verified, compared, restored, pruned."""
