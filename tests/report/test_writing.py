"""Files are replaced as a whole, and the target of a link stays unchanged."""

import os
import threading
from pathlib import Path

import pytest

from conformance.report.text import write


@pytest.mark.parametrize("is_there", [True, False])
def test_a_symbolic_link_is_replaced_and_not_followed(tmp_path, is_there):
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "report.html"
    if is_there:
        elsewhere.write_text("mine")
    link.symlink_to(elsewhere)
    write(link, "report")
    assert (link.is_symlink(), link.read_text()) == (False, "report")
    assert elsewhere.exists() == is_there
    assert not is_there or elsewhere.read_text() == "mine"


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    file = tmp_path / "report.html"
    file.write_text("earlier")
    with pytest.raises(TypeError):
        write(file, None)
    assert file.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["report.html"]


def test_it_is_as_readable_as_any_file(tmp_path):
    (tmp_path / "plain").touch()
    write(tmp_path / "report.html", "")
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write(pipe, "report")
    reader.join()
    assert (pipe.is_fifo(), read) == (True, ["report"])


def test_a_device_is_written_to():
    write(Path("/dev/null"), "report")
    assert Path("/dev/null").is_char_device()
