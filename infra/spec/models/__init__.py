"""Models by name: the catalogue, what a name stands for, and sizes by formula."""
