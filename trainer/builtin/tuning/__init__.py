"""How a rank uses its process and its node: processors, threads, garbage collection."""
