"""The tools for files below one folder: reading, writing, searching.

`tools` makes them; `root` opens each file so that no link leads out of the folder. May import what `tools` may import.
"""
