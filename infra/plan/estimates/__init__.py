"""The arithmetic that checks and plan share: every figure comes from one place and shows its formula. Pure."""
