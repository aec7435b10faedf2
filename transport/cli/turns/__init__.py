"""The commands that run turns: `warren run`, `resume`, `chat`, `compact` and `record`."""
