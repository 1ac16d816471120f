"""From a model and a device to the seconds of one iteration."""
