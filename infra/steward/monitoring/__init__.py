"""What the steward tells the monitoring, and hears from it."""
