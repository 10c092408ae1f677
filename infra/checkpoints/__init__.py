"""Checkpoints in any place, for people: listed, verified, compared, restored, pruned."""
