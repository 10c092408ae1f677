"""The spec's section `workload`: a training job of anybody, in place of the built-in trainer."""
