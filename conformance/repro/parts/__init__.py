"""The parts of scripts: each script copies the functions and methods that its trainer uses.

They import only each other from this package. `values` has the names of a case's values.
"""
