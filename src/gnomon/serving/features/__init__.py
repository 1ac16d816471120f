"""Compiled code that only some runs need: transfers, tiers, adapters, agents' calls, the front end."""
