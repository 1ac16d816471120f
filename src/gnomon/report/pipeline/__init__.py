"""Pictures and tables of training pipelines."""
