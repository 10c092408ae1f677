"""Text in, token shards out, and a reader whose order is a pure function of seed and position."""
