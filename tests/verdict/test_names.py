"""Where the value that a line uses is assigned, counted or restored."""

from __future__ import annotations

import pytest

from conformance.verdict.names import Source, source

CODE = """\
class Average:
    def __init__(self):
        self.updates = 0
        self.steps = 0
        self.total = len(self.names)
        self.rate = rate

    def update(self, mean, p):
        mean.add_((p - mean) / (self.updates + 1))
        self.updates += 1

    def state_dict(self):
        return {"steps": self.steps}

    def loss(self, loss):
        loss = loss / self.rate
        return loss / self.total


class Optimizer:
    def step(self):
        if not self.skipped:
            self.inner.step()
        if done():
            self.schedule()

    def schedule(self):
        self.inner.step()

    def update(self):
        self.skipped = False
        self.skipped = scale() != before

    def load(self, file):
        saved = torch.load(file)
        self.model.load_state_dict(saved["model"])
        self.state = State(**saved["run"])

    def forward(self, x):
        net = unwrap(self.net)
        return net(x)
"""


@pytest.fixture
def file(tmp_path) -> Source:
    (tmp_path / "loop.py").write_text(CODE)
    found = source("loop.py", tmp_path)
    assert found is not None
    return found


def at(text: str) -> int:
    [line] = [number for number, one in enumerate(CODE.splitlines(), 1) if one.strip() == text]
    return line


def test_a_count_that_no_checkpoint_has(file):
    first, used = at("self.updates = 0"), at("mean.add_((p - mean) / (self.updates + 1))")
    assert file.uncounted(used) == first and file.counter(used) == at("self.updates += 1")
    assert file.uncounted(first) == first and file.uncounted(at("self.steps = 0")) is None


def test_a_count_that_a_checkpoint_has(tmp_path):
    for line in ('{"updates": self.updates}', "self.updates = state", "self.__dict__"):
        (tmp_path / "saved.py").write_text(CODE + f"\n    def save(self, state):\n        {line}\n")
        found = source("saved.py", tmp_path)
        assert found is not None and found.uncounted(at("mean.add_((p - mean) / (self.updates + 1))")) is None


def test_conditions_and_what_they_test(file):
    lines = [number for number, one in enumerate(CODE.splitlines(), 1) if one.strip() == "self.inner.step()"]
    own, through_the_call = (file.condition(line) for line in lines)
    assert own is not None and own.lineno == at("if not self.skipped:")
    assert file.flag(own) == at("self.skipped = scale() != before")
    # The `if` around the only call of its function.
    assert through_the_call is not None and through_the_call.lineno == at("if done():")
    assert file.flag(through_the_call) is None and file.condition(at("net = unwrap(self.net)")) is None


def test_values_that_are_computed_elsewhere(file):
    assert file.divisor(at("return loss / self.total")) == at("self.total = len(self.names)")
    # A setting, which is only copied.
    assert file.divisor(at("loss = loss / self.rate")) is None
    assert file.called(at("return net(x)")) == at("net = unwrap(self.net)")
    assert file.called(at("net = unwrap(self.net)")) is None
    assert file.restored(at("saved = torch.load(file)")) == at('self.state = State(**saved["run"])')


def test_a_file_that_is_not_python(tmp_path):
    (tmp_path / "broken.py").write_text("def (")
    assert source("broken.py", tmp_path) is None and source("missing.py", tmp_path) is None


def test_the_call_of_a_helper_of_one_line(tmp_path):
    code = """\
class Fabric:
    def backward(self, loss):
        loss.backward()

    def scaled(self, loss):
        (loss / 2).backward()

    def both(self, loss):
        loss.backward()
        self.count()


fabric.backward(loss)
fabric.scaled(loss)
fabric.both(loss)
"""
    (tmp_path / "loop.py").write_text(code)
    found = source("loop.py", tmp_path)
    assert found is not None
    assert [found.caller(line) for line in (3, 6, 9, 13)] == [13, None, None, None]
