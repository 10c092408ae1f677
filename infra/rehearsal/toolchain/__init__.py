"""Provides pulumi and the Kubernetes binaries. Standard library only: it runs beside `pip install`."""
