"""The right answer, the proof that it is exact or the bound of its error, and what faults would give instead."""
