"""A lost file system is seen and made again, and drift is repaired, while a campaign lives."""
