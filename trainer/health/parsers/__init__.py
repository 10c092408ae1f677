"""What tools print, as facts: pure functions of text, each tried on real output in tests/samples."""
