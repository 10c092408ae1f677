"""Ranks that are forked from a process that has imported the job's modules (`ranks`), and start again in place after a
death (`job`)."""
