"""What the spec says of monitoring outside of the cluster."""
