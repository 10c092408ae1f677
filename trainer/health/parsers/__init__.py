"""Parsers of tools' output: pure functions of text, each tested on real output in tests/samples."""
