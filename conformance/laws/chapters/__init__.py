"""The laws. Each chapter has one file, or several whose names begin with its name.

Each function decorated with `law` is a law; there is no list to extend.
"""
