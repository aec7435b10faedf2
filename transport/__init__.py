"""All that crosses the process: the surfaces, and outwards the providers of models. `embed` is the way in for programs.

May import every other package. The folders import one another one way: `docs/architecture.md` shows the order.
"""
