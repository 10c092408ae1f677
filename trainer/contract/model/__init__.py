"""The model as driver and trainer both count it: its shape, its layout over the ranks, and its adapters."""
