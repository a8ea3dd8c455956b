"""What scripts are made of: each copies, of these files, the functions and methods that its trainer uses.

They import nothing of ours but each other. `values` has the names of what a script holds of its case.
"""
