"""What tests of programs need: the plugin of pytest, a recorder of events, and conversations as text to compare.

Programs import it as `warren.testing`. May import `warren.transport.embed` and `providers`, and the packages below
transport.
"""
