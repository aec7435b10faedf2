"""The commands about a store as a whole, and the choice of a store."""
