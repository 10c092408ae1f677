"""A nodelet: one emulated EC2 machine, and on it what a kubelet and its container runtime would do."""
