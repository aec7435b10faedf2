"""Structured output: the request for an answer that fits a JSON schema, and the check of the answer. No I/O.

Callers use `output`; it imports `check` with the first schema, because that import is slow. Imports the domain.
"""
