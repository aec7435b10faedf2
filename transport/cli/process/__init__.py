"""The process of a command: its limits, its signals and its end."""
