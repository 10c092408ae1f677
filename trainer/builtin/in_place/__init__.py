"""The restart in place: after a process has died and its node is well, the agents stay and start all ranks again.

Each start of all ranks within an attempt is a generation. The agents have the imports that take most of a start.
"""
