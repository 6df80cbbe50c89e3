"""A training run: its config, its folder, its loggers and the order in which it is built."""
