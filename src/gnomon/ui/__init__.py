"""The web page to explore: `gnomon ui`. Dash on the same figures as the reports; needs the extra `ui`."""
