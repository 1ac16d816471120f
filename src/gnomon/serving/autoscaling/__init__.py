"""Replicas over time: they start, drain, fail and slow down; controllers decide how many there are."""
