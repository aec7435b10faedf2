"""The calls that a runtime answers: their arguments, and the interface that has them as methods.

May import all other folders of the domain.
"""
