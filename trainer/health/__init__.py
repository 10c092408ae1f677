"""What a node proves before it may train: itself against its profile, and the fabric by a collective."""
