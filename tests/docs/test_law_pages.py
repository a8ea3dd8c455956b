"""The site's pages of laws; `nox -s docs` also runs the wrong code that they show."""

from __future__ import annotations

import pytest

from conformance.laws.law import catalogue, laws
from tools.law_pages import mutants, page, watched


@pytest.mark.parametrize("law", catalogue(), ids=lambda law: law.id)
def test_a_page_has_reason_wrong_code_and_right_code(law):
    text = page(law, None, None)
    assert text.startswith(f"# {law.id}\n\n**{law.says}**")
    assert law.why in text
    assert law.fix[1:] in text
    if law.needs_plan or law.id in watched():
        assert "## Wrong" in text
        edit = text.partition("```diff\n")[2].partition("```")[0].splitlines()
        # A whole file is linked, and not shown.
        is_changed = any(line.startswith(("-", "+")) for line in edit)
        assert is_changed or (mutants()[law.id].base is None if law.needs_plan else "```python\n" in text)


def test_each_law_of_a_run_has_wrong_code():
    assert mutants().keys() == {law.id for law in laws()}
