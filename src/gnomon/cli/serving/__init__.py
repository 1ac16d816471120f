"""Commands on serving."""
