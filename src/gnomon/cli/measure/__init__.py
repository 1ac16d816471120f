"""Commands on measuring."""
