"""Replacement of the pulumi-kubernetes plugin: server-side apply, and Helm releases as Helm would record them."""
