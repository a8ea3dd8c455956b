"""After a complete checkpoint, a rank is killed in the write that would make a file too large."""

from multiprocessing import get_context

import pytest

from conformance.runner.outcome import signal_name
from conformance.runner.rank.killing import KILLED, LARGEST, _FirstFile, killed_in_save


def train(folder, spec, rank, saves):
    """Steps four times, and saves after some steps; evidence goes to a separate file."""
    with open(folder.parent / "evidence", "wb", buffering=0) as evidence:
        send = killed_in_save(lambda event: evidence.write(b"." * 3 * LARGEST), spec, rank)
        (folder / "settings").write_text("none")
        for step in range(1, 5):
            for optimizer in (0, 1):
                send({"event": "step", "optimizer": optimizer})
            if step in saves:
                (folder / f"{step}.pt").write_bytes(b"w" * 3 * LARGEST)


def how_it_ended(target, *arguments):
    process = get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join()
    return f"killed by {signal_name(-process.exitcode)}" if process.exitcode < 0 else "exited"


def ended(folder, rank=0, saves=(2, 4), **changes):
    """How a training process ended, which should save after two windows and after four."""
    folder.mkdir()
    life = {"checkpoint_dir": str(folder), "save_after": [2, 4]}
    return how_it_ended(train, folder, {"resumed": "killed", "life": life, **changes}, rank, saves)


def test_it_leaves_the_start_of_the_second_checkpoint(tmp_path):
    assert ended(tmp_path / "saved") == KILLED
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "saved").iterdir()}
    assert sizes == {"settings": 4, "2.pt": 3 * LARGEST, "4.pt": LARGEST}
    assert (tmp_path / "evidence").stat().st_size == 8 * 3 * LARGEST


@pytest.mark.parametrize("changes", [{"rank": 1}, {"resumed": "once"}, {"life": {"checkpoint_dir": None}}])
def test_no_other_process_is_killed(tmp_path, changes):
    assert ended(tmp_path / "saved", **changes) == "exited"


@pytest.mark.parametrize(("saves", "how"), [((), "exited"), ((4,), "exited"), ((2,), "exited"), ((1, 2, 3), KILLED)])
def test_it_is_killed_only_if_there_is_a_checkpoint_to_resume_from(tmp_path, saves, how):
    assert ended(tmp_path / "saved", saves=saves) == how


def train_in_files(folder, spec, files):
    """Steps three times, and writes and renames these files after the last two steps."""
    send = killed_in_save(lambda event: None, spec, 0)
    for step in range(1, 4):
        send({"event": "step", "optimizer": 0})
        for name in files if step > 1 else ():
            (folder / "new").write_bytes(str(step).encode() * 3 * LARGEST)
            # An observer may note each file.
            send({"event": "save"})
            (folder / "new").rename(folder / name)


@pytest.mark.parametrize(
    ("files", "how", "left"),
    [
        (["a", "b", "c"], KILLED, {"a": "3", "b": "2", "c": "2", "new": "3"}),
        (["a"], "exited", {"a": "3"}),
        ([], "exited", {}),
    ],
)
def test_it_is_killed_between_two_files(tmp_path, files, how, left):
    life = {"checkpoint_dir": str(tmp_path), "save_after": [2, 3]}
    spec = {"resumed": "killed-between-files", "life": life}
    assert how_it_ended(train_in_files, tmp_path, spec, files) == how
    assert {path.name: path.read_text()[0] for path in tmp_path.iterdir()} == left
    assert all(path.stat().st_size == (1 if path.name == "new" else 3) * LARGEST for path in tmp_path.iterdir())


def test_a_file_is_not_whole_while_it_is_open(tmp_path):
    """Nor is the last file of a checkpoint the first file of the next one."""
    whole, first = [], _FirstFile(tmp_path, lambda: whole.append(True))
    with (tmp_path / "some").open("wb") as file:
        file.write(b"w" * 2 * LARGEST)
        file.flush()
        first.look(None, "return", None)
        assert not whole
    first.look(None, "call", None)
    assert not whole
    first.look(None, "c_return", None)
    assert whole and first.is_whole
    first.expect()
    first.look(None, "return", None)
    assert len(whole) == 1
