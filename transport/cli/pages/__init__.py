"""Pages of the documentation that are made from settings and bounds."""
