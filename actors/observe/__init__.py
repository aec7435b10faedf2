"""The counts and figures of a running runtime.

May import the domain alone.
"""
