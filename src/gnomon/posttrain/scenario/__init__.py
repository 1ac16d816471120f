"""What is asked: the configuration, the lengths it draws, and whether its placement is valid."""
