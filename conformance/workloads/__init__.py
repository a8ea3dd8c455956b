"""The trained models and data, in exact rationals. Independent of torch."""
