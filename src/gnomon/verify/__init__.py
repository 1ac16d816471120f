"""Proofs: our results held against recorded and published ones."""
