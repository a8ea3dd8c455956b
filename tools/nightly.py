"""Compares results with newer frameworks with the published reports.

    python -m tools.nightly build/nightly

A folder `nightly-REPORT.release` or `nightly-REPORT.main` below the given one has the results with the newest release,
or with the main branch. Writes `issue.md` next to them, the text of an issue about the regressions, and prints
`broken=` with their names, as a job's output. The results with the releases replace the published reports, so the site
shows this night's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from conformance.report.differences import compared, markdown
from conformance.report.html import render_html
from conformance.results import Results, read_results
from conformance.results.result_lines import PASSED
from tools.reports_page import REPORTS, TABLES, Report, example, page, reports, with_table

#: Differences of a kind, as GitHub takes 65,536 characters.
MOST = 10


def regression(name: str, of: str, old: Results, new: Results) -> Iterator[str]:
    """Lines of Markdown on what broke; none if nothing did."""
    passed = {(case.trainer, case.id) for case in old.cases if case.verdict in PASSED}
    broken = [case for case in new.cases if case.failed and (case.trainer, case.id) in passed]
    if not broken:
        return
    before, after = (Report(name, results, ()).versions for results in (old, new))
    changed = {package: (was, after[package]) for package, was in before.items() if after.get(package, was) != was}
    versions = ", ".join(f"{package} {was} → {now}" for package, (was, now) in changed.items())
    yield f"## {name} ({of}): {versions or 'the same versions'}\n"
    comparison = compared(old, new)
    yield from markdown(comparison, [one for one in comparison.sections if not one.is_detail], MOST)
    if of == "release" and changed:
        yield "\nWhich release broke the first case:\n\n```sh"
        for package, (was, now) in changed.items():
            ends = f"--good {package}=={was} --bad {package}=={now}"
            yield f"conformance bisect {ends} -- {broken[0].id} {broken[0].target}"
        yield "```"
    yield ""


def main(folder: Path) -> None:
    names, lines = [], []
    for file in sorted(folder.glob("nightly-*/conformance-results.jsonl")):
        name, _, of = file.parent.name.removeprefix("nightly-").rpartition(".")
        published, results = REPORTS / f"{name}.jsonl", read_results(file)
        if found := [*regression(name, of, read_results(published), results)]:
            names.append(f"{name} ({of})")
            lines += found
        if of == "release":
            published.write_bytes(file.read_bytes())
            render_html(results, published.with_suffix(".html"))
    (folder / "issue.md").write_text("\n".join(lines) or "No regression.\n")
    print(f"broken={', '.join(names)}")
    tonight = reports()
    (REPORTS / "index.html").write_text(page(tonight))
    for table, made in TABLES.items():
        # The example of README.md shows a bug, which a release may have fixed.
        if made is not example:
            table.write_text(with_table(table.read_text(), made(tonight)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
