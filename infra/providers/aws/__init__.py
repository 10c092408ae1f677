"""Replaces the pulumi-aws plugin: one table entry per resource type, one module per concern of an AWS service."""
