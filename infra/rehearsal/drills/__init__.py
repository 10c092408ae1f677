"""Drills: faults of a rehearsal whose consequences are held against what is expected."""
