"""What `conformance watch` leaves: no old report, no report over another's, nothing outside its folder, no secrets."""

import os
import subprocess
import sys

import pytest

REPORT = "conformance-watch.html"
SECRET = "s3cret"
WRONG = """
import os, torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
"""
# Says that it runs, and waits until it may end.
WAITING = "import sys; open(sys.argv[1], 'w').close(); open(sys.argv[2]).close()"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(WRONG)
    (tmp_path / "out").mkdir()
    return tmp_path


def command(*script, options=("--output", "out")):
    return [sys.executable, "-m", "conformance", "watch", *options, "--", *script]


def ended(folder, *script, **more):
    return subprocess.run(
        command(*script, **more), cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


class Waiting:
    """A watch whose script runs until `goes_on`."""

    def __init__(self, folder, *options):
        pipes = [folder / "begun", folder / "may-end"]
        for pipe in pipes:
            os.mkfifo(pipe)
        self.process = subprocess.Popen(
            command(sys.executable, "-c", WAITING, *map(str, pipes), options=("--output", "out", *options)),
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        pipes[0].open().close()
        self._gate = pipes[1]

    def goes_on(self):
        self._gate.open("w").close()
        return self.process.communicate(timeout=300)[0]


def test_an_old_report_does_not_stand_beside_a_watch_that_does_not_end(folder):
    (folder / "out" / REPORT).write_text("old")
    watch = Waiting(folder)
    watch.process.kill()
    watch.goes_on()
    assert os.listdir(folder / "out") == []


def test_files_for_ci_do_not_stand_beside_a_watch_that_does_not_end(folder):
    (folder / "a.xml").write_text("old")
    ended(folder, "./nothing", options=("--junit", "a.xml"))
    assert (folder / "a.xml").read_text() == "old"
    watch = Waiting(folder, "--junit", "a.xml")
    watch.process.kill()
    watch.goes_on()
    assert not (folder / "a.xml").exists()


def test_a_command_that_cannot_be_started_leaves_the_old_report(folder):
    (folder / "out" / REPORT).write_text("old")
    assert ended(folder, "./nothing").returncode == 2
    assert (folder / "out" / REPORT).read_text() == "old"


def test_two_watches_into_one_folder_leave_two_reports(folder):
    watch = Waiting(folder)
    ended(folder, sys.executable, "-c", "'the second'")
    first = (folder / "out" / REPORT).read_text()
    assert "the second" in first
    assert "Report: out/conformance-watch-2.html" in watch.goes_on()
    assert (folder / "out" / REPORT).read_text() == first
    assert "may-end" in (folder / "out" / "conformance-watch-2.html").read_text()


def test_files_are_not_written_through_symbolic_links(folder):
    elsewhere, names = folder / "elsewhere", ("out/" + REPORT, "a.md", "a.xml", "a.sarif")
    elsewhere.write_text("mine")
    for name in names:
        (folder / name).symlink_to(elsewhere)
    options = ("--output", "out", "--markdown", "a.md", "--junit", "a.xml", "--sarif", "a.sarif")
    ended(folder, sys.executable, "-c", "", options=options)
    assert elsewhere.read_text() == "mine"
    assert [name for name in names if (folder / name).is_symlink() or (folder / name).read_text() == "mine"] == []


def test_reports_name_files_from_the_folder_of_the_run_and_hide_secrets(folder):
    (folder / "scripts" / "train.py").write_text(f"{WRONG}raise SystemExit(7)")
    options = ("--output", "out", "--markdown", "out/a.md", "--junit", "out/a.xml", "--sarif", "out/a.sarif")
    script = str(folder / "scripts" / "train.py")
    done = ended(
        folder, "env", f"HF_TOKEN={SECRET}", sys.executable, script, "--key", SECRET, "--max-tokens", "512",
        f"--repo=https://me:{SECRET}@host/x", options=options,
    )  # fmt: skip
    assert "exit code 7: env HF_TOKEN=REDACTED" in done.stderr
    texts = {file.name: file.read_text() for file in (folder / "out").iterdir()}
    assert len(texts) == 4
    for text in (done.stdout + done.stderr, *texts.values()):
        assert SECRET not in text
        assert "scripts/train.py" in text
        assert str(folder) not in text
    for name in (REPORT, "a.md", "a.xml", "a.sarif"):
        assert "scripts/train.py --key REDACTED --max-tokens 512 --repo=https://REDACTED@host/x" in texts[name]


def test_what_cannot_be_started_is_named_without_its_secret(folder):
    assert ended(folder, f"TOKEN={SECRET}", "python").stderr.startswith("conformance: TOKEN=REDACTED cannot be started")


def test_a_later_watch_replaces_the_report_of_an_earlier_one(folder):
    for words in ("'one'", "'two'"):
        ended(folder, sys.executable, "-c", words)
    assert os.listdir(folder / "out") == [REPORT]
    assert "two" in (folder / "out" / REPORT).read_text()
