"""Replaces the pulumi-kubernetes plugin: objects by server-side apply, Helm releases as Helm would record them."""
