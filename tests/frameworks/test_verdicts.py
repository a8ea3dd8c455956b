"""Each framework adapter gets the verdicts and reasons of its published report.

docs/findings.md lists which of them are known not to conform. nox's sessions run one framework each.
"""

from __future__ import annotations

import pytest

from .published import judged_by_command, published, reasons, telling

FRAMEWORKS = (
    *("accelerate", "catalyst", "fabric", "fastai", "funasr", "ignite", "keras", "lightning", "mmengine", "monai"),
    *("poutyne", "pytorch_accelerated", "pytorch_metric_learning", "sentence_transformers", "skorch", "speechbrain"),
    *("torchtnt", "transformers", "trl"),
)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_verdicts_are_those_of_the_published_report(name, tmp_path):
    cases = telling(name)
    found = {case.id: reasons(case) for case in judged_by_command(tmp_path, f"conformance.frameworks.{name}", cases)}
    assert found == published(name, cases)
