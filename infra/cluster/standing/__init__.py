"""What a cluster that stands asks of the gang and its nodes: where it is placed, its queue, nodes that are borrowed."""
