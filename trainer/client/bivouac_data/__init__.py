"""The order of samples and their reading, on numpy alone: the built-in trainer's, and any job's by `sequences`."""
