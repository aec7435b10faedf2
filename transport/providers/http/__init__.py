"""The HTTP client of the providers: httpx's interface, over connections of our own. httpx's pool looks at every one.

May import nothing else of `warren`.
"""
