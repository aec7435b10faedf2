"""The configuration file, its tables and tools, and `warren config show`, which prints each setting and its source."""
