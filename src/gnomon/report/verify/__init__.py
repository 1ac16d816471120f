"""Pictures and pages of what `gnomon verify` finds."""
