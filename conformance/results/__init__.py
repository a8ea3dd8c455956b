"""The results file: a run writes it, and every report is rendered only from it.

`ResultsWriter` appends cases as they finish: a killed run keeps them. `read_results` reads them back. `result_lines.py`
defines the format; SCHEMA.md for people and schema.json for machines are generated from it.
"""

from .reader import Results, ResultsError, read_results
from .writer import ResultsWriter

__all__ = ["Results", "ResultsError", "ResultsWriter", "read_results"]
