"""Pictures and tables of RL post-training."""
