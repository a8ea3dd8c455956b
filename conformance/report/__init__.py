"""The results file and what is rendered from it.

`ResultsWriter` appends cases as they finish, `read_results` reads them back; `html.render_html` and
`terminal.render_terminal` show them. The schema is in SCHEMA.md and schema.json.
"""

from .results import Incomplete, Results, ResultsError, read_results
from .writer import ResultsWriter

__all__ = ["Incomplete", "Results", "ResultsError", "ResultsWriter", "read_results"]
