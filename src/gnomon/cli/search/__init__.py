"""Commands on searching."""
