"""The built-in trainer: its loop, model, data, checkpoints and watch. A job of one's own needs nothing of it."""
