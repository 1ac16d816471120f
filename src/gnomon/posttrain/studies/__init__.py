"""Questions that take several runs: policies compared, a plan for a budget, efficiencies from measured stages."""
