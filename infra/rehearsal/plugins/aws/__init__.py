"""Replacement of the pulumi-aws plugin: one table entry per resource type, one module per concern of a service."""
