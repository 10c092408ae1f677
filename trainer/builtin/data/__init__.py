"""Preparation of text as token shards, and a reader whose order is a pure function of seed and position."""
