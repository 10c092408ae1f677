"""The client of a training script, one file that stands alone."""
