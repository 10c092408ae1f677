"""The watch over training: figures of each step, detectors, replays, and what follows from an alarm."""
