"""Benchmarks: one script a question. `python -m benchmarks` runs them all."""
