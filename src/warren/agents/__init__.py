"""Agents: what sessions are made of, under a name.

May import `base`, `conversation`, `models` and `structured`.
"""
