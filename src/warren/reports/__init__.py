"""Reports for operators, as plain values: health, metrics, statistics, the audit, findings about a store, usage.

May import `base` and `conversation`.
"""
