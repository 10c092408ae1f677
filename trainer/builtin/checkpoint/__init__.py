"""Checkpoints: written beside the training, committed by agreement of all ranks, verified before they are loaded."""
