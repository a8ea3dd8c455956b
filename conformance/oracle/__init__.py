"""The correct answer, the proof that it is exact or the bound of its error, and the numbers of known bugs."""
