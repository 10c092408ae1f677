"""`pulumi up` typed by hand; `bivouac` runs the same `program()` inside its own process."""

from infra.stack.program import program

program()
