"""From other tools' command lines to scenarios."""
