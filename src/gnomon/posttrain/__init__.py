"""Elastic scheduling of RL post-training."""
