"""Benchmarks: time and peak memory of the ops, against plain torch and other packages."""
