"""The console: a page in the browser that shows the sessions of a gateway and works with them, over `/ws` alone.

`static` is served as it is. `vendoring` makes the libraries in it (`make vendor`). May import `warren.transport.http`.
"""
