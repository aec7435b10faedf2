"""Structured output: the request for an answer that fits a JSON schema, and the check of the answer.

Callers use `output`. It imports `check` with the first schema, because that import is slow. May import the domain.
"""
