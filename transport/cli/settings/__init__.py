"""Settings and their sources: options, variables and the configuration file; and `warren config`."""
