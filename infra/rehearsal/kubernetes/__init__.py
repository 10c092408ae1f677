"""The EKS control plane of a rehearsal: the same Kubernetes, as plain processes inside the site's namespaces."""
