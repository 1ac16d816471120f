"""Random scenarios over all features, and what must hold of every one of them."""
