"""Measuring on a GPU: stands beside the tower and imports nothing of it."""
