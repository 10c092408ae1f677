"""The arithmetic that checks and plan share: each figure is computed in one place and shows its formula. Pure."""
