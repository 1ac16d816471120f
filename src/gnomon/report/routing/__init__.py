"""Pictures, tables and files of learned routing."""
