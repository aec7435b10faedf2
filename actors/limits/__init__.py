"""The limits of tenants and tokens, and the accounts that they are checked against.

May import the loose modules of `actors`.
"""
