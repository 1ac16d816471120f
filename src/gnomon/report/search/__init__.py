"""Pictures, tables and files of a search."""
