"""What each command of `bivouac` does; `cli` only selects."""
