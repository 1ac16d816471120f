"""Compiled code that every run needs: state, loops, batches, the prefix cache, the log."""
