"""The HTML report of a watch: verdict, causes and curves, with all text escaped."""

from conformance.watch.judging.history import Curve
from conformance.watch.page.page import write

from .scripts import Script, total


def test_the_page_has_the_verdict_the_causes_and_the_curves(tmp_path):
    script = Script()
    used = [total(script.backward(), 0.5)] * 2
    for _ in range(3):
        script.step(used)
    text = write(script.findings(), ["python", "<train>.py"], tmp_path).read_text()
    assert '<h1 class="t-bad">DOES NOT CONFORM</h1>' in text
    assert "watch/fresh" in text
    assert "&lt;train&gt;.py" in text
    assert "<train>" not in text
    assert text.count("<svg") == 4


def test_a_curve_stays_small():
    curve = Curve()
    for step in range(100_000):
        curve.add(step, 1.0)
    assert len(curve.points) <= 512
    assert curve.points[0] == (0, 1.0)
    assert curve.points[-1][0] > 99_000
