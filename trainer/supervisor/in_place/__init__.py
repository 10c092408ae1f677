"""The restart in place: after a process has died and its node is well, the supervisors stay and start all ranks again.

Each start of all ranks within an attempt is a generation. What takes most of a start, the imports, is kept.
"""
