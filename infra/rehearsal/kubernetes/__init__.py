"""The EKS control plane of a rehearsal: real Kubernetes, as plain processes inside the site's namespaces."""
