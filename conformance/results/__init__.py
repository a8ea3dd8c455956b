"""The results file: what a run writes, and everything is rendered from.

`ResultsWriter` appends cases as they finish, `read_results` reads them back. `records.py` is the format; SCHEMA.md
describes it in words and schema.json for machines, both written from it.
"""

from .reader import Incomplete, Results, ResultsError, read_results
from .writer import ResultsWriter

__all__ = ["Incomplete", "Results", "ResultsError", "ResultsWriter", "read_results"]
