"""The running sessions: supervisor, session and storage actors, turns and tools."""
