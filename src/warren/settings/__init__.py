"""The settings of a runtime, as plain values.

May import `base`, `conversation`, `compaction`, `models` and `agents`.
"""
