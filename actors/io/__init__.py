"""Streams of bytes, processes of the machine, and the proxies of the environment, for tools and surfaces.

May import the domain alone.
"""
