"""One module per section of the config file."""
