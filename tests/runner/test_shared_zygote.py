"""One process imports torch for several workers, and forks all their servers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance.runner.front.client import ForkServer, RunnerError, TrainerError
from conformance.runner.front.zygote_client import Shared, ZygoteClient, ZygoteProcess, shared
from conformance.runner.outcome import ZygoteLost

LIMIT = 60.0


@pytest.fixture(scope="module")
def process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OF_THE_FRONT", "before")
        process = ZygoteProcess()
    yield process
    process.close()


@pytest.fixture(autouse=True)
def of_the_front(monkeypatch):
    monkeypatch.setenv("OF_THE_FRONT", "before")


@pytest.fixture
def joined(process):
    """The `Shared` of a worker that knows the address of the process."""
    joined = Shared()
    joined.join(process.address)
    yield joined
    joined.close()


@pytest.fixture
def rank(joined, write, make_spec):
    """Runs a case on it, with ``inside`` in the only rank and ``before`` on import; returns the rank."""

    def run(inside="", before=""):
        with ForkServer(write(inside, before), "single", starter=joined.get) as server:
            return server.run(make_spec("single", 1), LIMIT).ranks[0]

    return run


@pytest.fixture
def refused(joined, write, rank):
    """Checks that an import fails for this reason, and that other trainers still run."""

    def expect(before, why):
        zygote = joined.get()
        with pytest.raises(TrainerError, match=why), ForkServer(write("", before), "single", starter=joined.get):
            pass
        assert rank().finished
        assert joined.get() is zygote

    return expect


def test_workers_connect_to_it(process, descendants):
    """No worker needs its own process."""
    first, second = (ZygoteClient(process.address) for _ in range(2))
    assert not descendants(process._process.pid)
    assert first.versions == second.versions
    assert first.running and second.running
    first.close()
    assert second.running
    second.close()


def test_its_servers_have_the_environments_of_their_workers(rank, monkeypatch):
    monkeypatch.setenv("OF_THE_WORKER", "later")
    monkeypatch.delenv("OF_THE_FRONT")
    assert rank("print(os.environ.get('OF_THE_WORKER'), os.environ.get('OF_THE_FRONT'))").output == "later None\n"


def test_the_error_when_it_has_ended(write):
    """A worker that has only joined it does not know how it ended."""
    joined = Shared()
    joined.join((process := ZygoteProcess()).address)
    before = joined.get()
    process.close()
    with pytest.raises(ZygoteLost, match=r"^the process that imports torch died$"):
        before.serve(write(), "single", spawn=None, limit=LIMIT)
    assert not before.running
    before.close()


# Kills the parent of its server.
KILL = "os.kill(int(open(f'/proc/{SERVER}/stat').read().rpartition(')')[2].split()[1]), signal.SIGKILL)"


def test_an_importer_killed_during_a_case(rank):
    assert rank(KILL.replace("SERVER", "os.getppid()")).finished
    assert rank().finished


def test_an_importer_and_its_server_killed_during_a_case(rank):
    killed = rank(f"{KILL.replace('SERVER', 'os.getppid()')}; os.kill(os.getppid(), signal.SIGKILL)")
    assert not killed.finished
    assert killed.exit == "the trainer's server died (the process that imported the trainer died)"


def test_a_zygote_killed_during_an_import_is_replaced(write, make_spec, tmp_path):
    joined = Shared()
    joined.join((process := ZygoteProcess()).address)
    flag = tmp_path / "armed"
    flag.touch()
    die = KILL.replace("SERVER", "'self'").replace("{'self'}", "self").replace("f'", "'")
    target = write("", f"if os.path.exists({str(flag)!r}): os.remove({str(flag)!r}); {die}; threading.Event().wait()")
    with ForkServer(target, "single", starter=joined.get) as server:
        assert server.run(make_spec("single", 1), LIMIT).ranks[0].finished
    assert not flag.exists()
    joined.close()
    process.close()


def test_workers_share_the_import_of_a_trainer(process, write, make_spec, monkeypatch, tmp_path):
    """Ranks still have pytest's variables of their worker; any other difference means a separate import."""
    imports = tmp_path / "imports"
    target = write(
        "print(os.environ['PYTEST_XDIST_WORKER'], os.environ.get('OF_THE_FRONT'))",
        f"open({str(imports)!r}, 'a').write(os.environ.get('PYTEST_XDIST_WORKER', 'x'))",
    )

    def serving(worker):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        (own := Shared()).join(process.address)
        server = ForkServer(target, "single", starter=own.get)
        server.__enter__()
        return own, server

    def printed(server):
        return server.run(make_spec("single", 1), LIMIT).ranks[0].output

    workers = [serving("gw0"), serving("gw1")]
    assert [printed(server) for _, server in workers] == ["gw0 before\n", "gw1 before\n"]
    assert imports.read_text() == "x"
    monkeypatch.setenv("OF_THE_FRONT", "another")
    workers.append(serving("gw2"))
    assert imports.read_text() == "xx"
    assert [printed(server) for _, server in workers][1:] == ["gw1 before\n", "gw2 another\n"]
    for own, server in workers:
        server.__exit__()
        own.close()


def test_a_changed_trainer_is_imported_again(joined, write):
    """An importer ends with its last client, before that client can ask again."""
    target = Path(write())
    for number in range(5):
        target.write_text(target.read_text() + f"\nassert {number} < 3\n")
        with ExitStack() as stack:
            if number == 3:
                stack.enter_context(pytest.raises(TrainerError, match=r"AssertionError"))
            stack.enter_context(ForkServer(str(target), "single", starter=joined.get))
        if number == 3:
            break


WRITES = """
for number in range(3, 100):
    with suppress(OSError):
        os.write(number, {line!r})
"""


@pytest.mark.parametrize(
    "trouble",
    [
        "os.closerange(3, 100)",
        "os.closerange(3, 100); files = [open(os.devnull, 'a') for _ in range(9)]",
        WRITES.format(line=b"garbage\n"),
        WRITES.format(line=b"[]\n"),
        WRITES.format(line=b"{"),
    ],
)
def test_an_import_that_writes_to_descriptors_of_the_harness(refused, trouble):
    why = "import closed or wrote to file descriptors it had not opened$"
    refused(f"from contextlib import suppress\n{trouble}", why)


def test_an_import_that_writes_messages_of_an_importer(rank):
    """They come at a time when no importer sends such messages."""
    line = b'{"idle": 0}\n{"imported": 7}\n{}\n'
    assert rank("", f"from contextlib import suppress\n{WRITES.format(line=line)}").finished


def test_an_import_that_forks(rank):
    """The forked process serves nobody."""
    assert rank("", "os.fork()").finished


def test_an_importer_killed_once_is_restarted(joined, rank, tmp_path):
    """The system may have killed it, and other clients wait for it too."""
    (flag := tmp_path / "armed").touch()
    before = joined.get()
    assert rank(
        "", f"if os.path.exists({str(flag)!r}): os.remove({str(flag)!r}); os.kill(os.getpid(), signal.SIGKILL)"
    ).finished
    assert not flag.exists()
    assert joined.get() is before


def test_a_killed_importer_is_noticed_although_its_child_lives(refused):
    """The child has inherited the importer's descriptors."""
    fork = "if not os.fork(): os.setsid(); signal.pause()"
    refused(f"{fork}\nos.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL")


def test_an_import_that_breaks_its_process(refused):
    why = "the process that imported it died twice: memory is short, or the import limits the process or "
    refused("import json; json.JSONDecoder.decode = None", why)


def test_without_it_a_worker_starts_its_own(descendants):
    ended = ZygoteProcess()
    ended.close()
    own = Shared()
    own.join(ended.address)
    before = set(descendants(os.getpid()))
    assert own.get().running
    assert len(set(descendants(os.getpid())) - before) == 1
    own.close()


def test_why_torch_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('built for another machine')")
    monkeypatch.syspath_prepend(tmp_path)
    process = ZygoteProcess()
    own = Shared()
    own.join(process.address)
    with pytest.raises(RunnerError, match=r"^the process that imports torch .* built for another machine$"):
        own.get()
    process.close()


def test_a_temporary_folder_with_a_name_too_long_for_a_socket(tmp_path, monkeypatch):
    (folder := tmp_path / ("long-" * 30)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    process = ZygoteProcess()
    client = ZygoteClient(process.address)
    assert client.running
    client.close()
    process.close()
    assert not list(folder.iterdir())


def test_a_zygote_whose_front_was_killed_leaves_no_folder(tmp_path):
    script = (
        "from conformance.runner.front.client import shared; shared.get(); print(shared.get()._process._process.pid)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{script}; input()"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as front:
        assert front.stdout is not None
        process = os.pidfd_open(int(front.stdout.readline()))
        assert list(tmp_path.glob("conformance-*"))
        front.kill()
    select.select([process], [], [])
    os.close(process)
    assert not list(tmp_path.glob("conformance-*"))


def test_a_workers_own_zygote_that_died_is_replaced(write, ran):
    before = shared.get()
    assert shared.get() is before
    process = os.pidfd_open(pid := before._process._process.pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)
    assert ran(write(), "single").ranks[0].finished
    assert shared.get() is not before
