"""The methods for callers: rights, limits, reads, and what each call does.

May import every other folder of `actors`.
"""
