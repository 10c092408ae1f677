"""A nodelet: one emulated EC2 machine with the work of its kubelet and container runtime."""
