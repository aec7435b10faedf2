"""The terminal and the pipes of a command: what is read, shown and logged."""
