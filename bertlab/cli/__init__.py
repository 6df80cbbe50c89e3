"""The commands: they read the configs, check them across fields and call the rest."""
