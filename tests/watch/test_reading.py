"""What a recorder writes is read while it comes in, file after file, and removed."""

from conformance.watch import reading
from conformance.watch.judging.judge import Judge
from conformance.watch.lines import encoded
from conformance.watch.parts import first_part, following_part

from .scripts import Script


def test_files_are_read_one_after_the_other(tmp_path):
    script = Script(ranks=1)
    for _ in range(2):
        script.step(script.backward())
        script.clear()
    lines = [encoded(record) for record in script.streams[0]]
    first = first_part(tmp_path, 5)
    second = following_part(first)
    judge = Judge()
    reader = reading.Reader(tmp_path, judge)
    first.write_text("".join(lines[:10]) + lines[10][:7])
    reader.read()
    with first.open("a") as file:
        file.write(lines[10][7:] + lines[11])
    second.write_text("".join(lines[12:]))
    reader.finish()
    assert not first.exists()
    findings = judge.finish()
    assert (findings.steps, findings.conserved) == (2, 2)


def test_a_rank_that_is_ahead_waits_and_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("conformance.watch.judging.launch._AHEAD", 1)
    script = Script(ranks=1)
    for _ in range(5):
        script.step(script.backward())
        script.clear()
    script.streams[0][0].world = 2
    first_part(tmp_path, 5).write_text("".join(encoded(record) for record in script.streams[0]))
    judge = Judge()
    reading.Reader(tmp_path, judge).finish()
    assert judge.finish().steps == 5
