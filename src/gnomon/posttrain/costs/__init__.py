"""Seconds of everything but generation: training, log-probabilities, weight sync."""
