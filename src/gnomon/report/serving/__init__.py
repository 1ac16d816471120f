"""Pictures, tables and files of a serving run."""
