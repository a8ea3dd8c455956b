"""Sites of events, in the user's code and in the trainer's own file."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

import conformance
from conformance.adapter import loading
from conformance.trace.recorder import Recorder
from conformance.trace.state.site import Sites, shortened

from ..trainers.tasks import make_spec, train
from .places import here


def test_the_line_that_called(with_model):
    """The site is found through torch's frames, decorators and context managers."""
    recording, model = with_model()
    optimizer = recording.task.optimizer(model.parameters())
    batch = next(iter(recording.task.dataloader()))
    loss = recording.task.loss(model(batch.inputs), batch)
    loss.backward()
    backward = here(-1)
    with torch.no_grad():
        optimizer.step()
        step = here(-1)
    assert {tuple(event["where"]) for event in recording.of_kind("backward_begin")} == {tuple(backward)}
    assert [event["where"] for event in recording.of_kind("step")] == [step]
    assert "called_from" not in recording.of_kind("step")[0]


def test_a_framework_is_the_users_code_too(record):
    """The site is the framework's line; the trainer's own line is `called_from`."""
    recording = record()
    recording.recorder.sites.trainer_file = __file__
    model = recording.task.model()
    batch = next(iter(recording.task.dataloader()))
    loss = recording.task.loss(model(batch.inputs), batch)
    Accelerator(cpu=True).backward(loss)
    mine = here(-1)
    [begin] = recording.of_kind("backward_begin")
    file, _, function = begin["where"]
    assert (file, function) == ("accelerate/accelerator.py", "Accelerator.backward")
    assert begin["called_from"] == mine


def test_a_helper_that_calls_what_it_is_given_is_left_out():
    def timed(function, *args):
        return function(*args)

    def named(function, argument):
        return function(argument)

    assert Sites(__file__).of(timed(sys._getframe, 0)) == (here(), None)
    assert Sites(__file__).of(named(sys._getframe, 0))[0][2] == named.__qualname__


def test_the_trainers_own_file_needs_no_second_place(record):
    recording = record()
    recording.recorder.sites.trainer_file = __file__
    recording.task.model()
    assert recording.events[0]["where"] == here(-1)
    assert "called_from" not in recording.events[0]


def test_equal_code_in_different_files():
    """Python compares such code as equal even for different files."""
    source = "def called(sites): return sites.of(sys._getframe())"
    sites, places = Sites(), {}
    for name in ("one.py", "other.py"):
        module = {"__name__": name.removesuffix(".py"), "sys": sys}
        exec(compile(source, name, "exec"), module)
        places[name] = module["called"](sites)
    assert places == {name: ([name, 1, "called"], None) for name in ("one.py", "other.py")}


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("project/engine.py", (["engine.py", 1, "called"], None)),
        ("lib/python3/site-packages/accelerate/engine.py", (["engine.py", 1, "called"], ["train.py", 1, "called"])),
        ("<made at runtime>", (["<made at runtime>", 1, "called"], ["train.py", 1, "called"])),
    ],
)
def test_a_project_of_several_files(tmp_path, monkeypatch, inner, expected):
    """The script calls its own engine, or that of an installed package."""
    sites = Sites(str(tmp_path / "main.py"), whole_project=True)

    def place():
        return sites.of(sys._getframe(1))

    for name in (inner, "project/train.py"):
        path = tmp_path / name
        if not name.startswith("<"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            monkeypatch.syspath_prepend(path.parent)
        module = {"__name__": "engine", "place": place}
        exec(compile("def called(): return place()", name if name.startswith("<") else str(path), "exec"), module)
        place = module["called"]
    assert place() == expected


@pytest.mark.parametrize("name", ["back.py", "site-packages/library/back.py"])
def test_all_calls_of_the_project(tmp_path, name):
    """An installed helper does not belong to the project."""
    sites = Sites(str(tmp_path / "main.py"), whole_project=True)
    found = []
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for file, text in ((name, "def back(): note()"), ("main.py", "back()\nback()")):
        (tmp_path / file).write_text(text)
    module = {"__name__": "helper", "note": lambda: found.append([line for _, line, _ in sites.own(sys._getframe(1))])}
    exec(compile((tmp_path / name).read_text(), str(tmp_path / name), "exec"), module)
    module["__name__"] = "main"
    exec(compile((tmp_path / "main.py").read_text(), str(tmp_path / "main.py"), "exec"), module)
    of_project = [[line for line in lines if line in (1, 2)] for lines in found]
    helper = [1] if name == "back.py" else []
    assert [lines[: len(helper) + 1] for lines in of_project] == [[*helper, 1], [*helper, 2]]


def test_a_reference_trainer_stands_for_the_users_code():
    """But the task does not."""
    events = train(loading.load("batched")[0], make_spec(steps=1, clip={"kind": "norm", "threshold": 1.0}))
    places = {tuple(event["where"][::2]) for event in events if event["event"] != "finished"}
    assert places == {("conformance/trainers/batched.py", "train")}


def test_no_line_of_the_user(record):
    """A thread of the autograd engine has no caller, so the site of the previous event is used."""
    assert Sites().of(None) == (None, None)
    recorder = record().recorder
    recorder.note("model")
    found = []
    thread = threading.Thread(target=lambda: found.append(recorder.sites.of(None)))
    thread.start()
    thread.join()
    assert found == [(here(-5), None)]


def test_files_are_named_as_they_are_imported(monkeypatch, tmp_path):
    """Relative to the longest entry of the path, or the working directory."""
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(inner), ""])
    assert shortened(str(inner / "package" / "module.py")) == "package/module.py"
    assert shortened(str(tmp_path / "script.py")) == "script.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    assert shortened(str(tmp_path / "script.py")) == "script.py"
    assert shortened("/elsewhere/script.py") == "/elsewhere/script.py"


def test_events_before_any_trainer():
    """The runner's own events have no site in this package."""
    events = []
    namespace = {"__name__": "conformance.made_up", "recorder": Recorder(events.append)}
    ours = str(Path(conformance.__file__).with_name("made_up.py"))
    exec(compile("recorder.note('started', pid=1)", ours, "exec"), namespace)
    assert events[0]["where"] == here(-1)
    # A user's package may be called `conformance` too.
    exec(compile("recorder.note('started', pid=1)", "made_up.py", "exec"), namespace)
    assert events[1]["where"][0] == "made_up.py"
