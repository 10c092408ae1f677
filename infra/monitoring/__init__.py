"""Alerts of a campaign: their rules for Prometheus and Alertmanager, and their runbooks."""
