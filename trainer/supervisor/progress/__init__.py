"""The progress of a job: numbers in its lines (`lines`), the step among them (`steps`), from any node (`nodes`), and
whether a resumed job goes on from where it was offered (`resume`)."""
