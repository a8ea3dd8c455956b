"""The results file: a run writes it, and every report is rendered from it alone.

`ResultsWriter` appends cases as they finish, so that a killed run loses none of them; `read_results` reads them back.
`records.py` declares the format; SCHEMA.md describes it in words and schema.json for machines. Both are generated.
"""

from .reader import Results, ResultsError, read_results
from .writer import ResultsWriter

__all__ = ["Results", "ResultsError", "ResultsWriter", "read_results"]
