"""Ranks that close, replace, truncate or write to descriptors of the harness."""

from __future__ import annotations

import pytest

from conformance.runner.front.client import ForkServer, Outcome, RankOutcome, RunnerError

LIMIT = 60.0

# All descriptors of the process except input and output; the one of the listing is closed by then.
OTHERS = "descriptors = [int(name) for name in os.listdir('/proc/self/fd') if int(name) > 2]"
SUPPRESS = "from contextlib import suppress"


@pytest.fixture
def run(write, make_spec):
    """Runs a case with this code in its only rank; then checks that another trainer still runs on the same zygote."""

    def run_case(inside, before="", *, time_limit=LIMIT):
        with ForkServer(write(inside, before), "single") as server:
            outcome = server.run(make_spec("single", 1), time_limit)
        with ForkServer(write(), "single") as server:
            assert server.run(make_spec("single", 1), LIMIT).ranks[0].finished
        return outcome

    return run_case


@pytest.mark.parametrize("then", ["", "threading.Event().wait()"], ids=["ends", "hangs"])
def test_the_harness_does_not_write_to_a_trainers_files(run, tmp_path, then):
    """The trainer's files reuse the harness's descriptors, but get no evidence and no stack."""
    outcome = run(
        f"""
        os.closerange(3, 4096)
        own = [os.open({str(tmp_path)!r} + f"/own-{{n}}", os.O_RDWR | os.O_CREAT) for n in range(64)]
        {then}
        """,
        time_limit=3.0 if then else LIMIT,
    )
    (rank,) = outcome.ranks
    assert (rank.finished, outcome.timed_out) == (False, bool(then))
    assert then or rank.exit.startswith("rank 0 closed or replaced file descriptors it had not opened")
    files = list(tmp_path.glob("own-*"))
    assert len(files) == 64
    assert [file.name for file in files if file.stat().st_size] == []


def test_a_rank_that_closes_all_descriptors_finishes_its_work(run, tmp_path):
    """The harness does not raise into it."""
    outcome = run(
        f"""
        os.closerange(3, 4096)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        open({str(tmp_path / "done")!r}, "w").close()
        """
    )
    assert (tmp_path / "done").exists()
    assert "Error" not in outcome.ranks[0].output
    assert outcome.ranks[0].exit.startswith("rank 0 closed or replaced")


@pytest.mark.parametrize(
    "how",
    ["os.ftruncate(one, 0)", *(f"os.write(one, {line})" for line in ("b'x'", "b'{}\\n'", "b'[' * 100_000 + b'\\n'"))],
)
def test_changed_evidence_is_malformed(run, how):
    outcome = run(f"{OTHERS}\nfor one in descriptors:\n    with suppress(OSError): {how}", SUPPRESS)
    (rank,) = outcome.ranks
    assert not rank.finished
    assert rank.exit.startswith("the evidence of rank 0 has ")
    assert rank.exit.endswith("a file descriptor it had not opened")
    assert list(rank.events) == []


@pytest.mark.parametrize("written", ["x", "{}\n", "[" * 100_000 + "\n"])
@pytest.mark.parametrize("kind", ["S_ISREG", "S_ISFIFO"])
def test_malformed_evidence_ends_the_case(write, ran, kind, written):
    """The harness does not let the ranks wait for each other until the time limit."""
    target = write(
        f"""
        import stat
        {OTHERS}
        for one in descriptors if task.rank else ():
            with suppress(OSError):
                if stat.{kind}(os.fstat(one).st_mode):
                    os.write(one, {written.encode()!r})
        threading.Event().wait()
        """,
        SUPPRESS,
    )
    outcome = ran(target)
    zero, one = outcome.ranks
    assert not outcome.timed_out
    assert one.exit.startswith("the evidence of rank 1 has an invalid ")
    assert (zero.after, one.after) == (1, None)


def test_events_of_an_unknown_kind_are_malformed(make_spec):
    magic = {"event": "magic", "rank": 0, "seq": 0, "time": 0.0, "where": None}
    rank = RankOutcome(0, [magic], True, "exited 0", "", None)
    (found,) = Outcome((rank,), 1.0, timed_out=False).placed(make_spec("single", 1)).ranks
    assert not found.finished
    assert found.exit.startswith("the evidence of rank 0 has event 0 of rank 0: 'magic' is not a kind of event")


def test_a_process_forked_by_a_rank_is_not_recorded(run):
    outcome = run(
        """
        if not os.fork():
            with torch.no_grad():
                model.weight.add_(1)
            loss = model(torch.ones(1, 1)).sum()
            loss.backward()
            optimizer.step()
            os._exit(0)
        os.wait()
        """
    )
    (rank,) = outcome.ranks
    assert rank.finished
    assert [event["event"] for event in rank.events].count("step") == 3


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("raise ValueError('in the child')", 1), ("return", 0)]
)
def test_a_process_forked_by_a_rank_exits_as_in_plain_python(run, end, code):
    """It does not wait for the release of the rank."""
    outcome = run(
        f"""
        if not (child := os.fork()):
            {end}
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {code}
        """
    )
    (rank,) = outcome.ranks
    assert (rank.finished, rank.exit) == (True, "exited 0")
    assert [event["event"] for event in rank.events].count("raised") == 0


def test_a_full_disk_is_a_failure_of_the_harness(run):
    full = """
        import stat
        def write(descriptor, data, write=os.write):
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(28, "No space left on device")
            return write(descriptor, data)
        from conformance.runner.rank import reporting
        reporting.write = write
        """
    with pytest.raises(RunnerError, match=r"^cannot write the evidence of rank 0: No space left on device$"):
        run(full)


@pytest.mark.parametrize("where", ["inside", "before"])
def test_a_rank_that_lowers_its_file_size_limit(run, where):
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))"
    (rank,) = run(**{"inside": "", where: limit}).ranks
    assert not rank.finished
    assert rank.exit.startswith("rank 0 lowered its file size limit (RLIMIT_FSIZE)")


@pytest.mark.parametrize("clock", ["lambda: 0.0", "lambda: 'noon'", "None"])
def test_a_rank_that_patches_the_clock(write, ran, clock):
    names = "time.time = time.monotonic = time.perf_counter = time.sleep"
    target = write(f"import time\n{names} = {clock}\nif task.rank: raise ValueError", f"import time\n{names} = {clock}")
    zero, one = ran(target).ranks
    assert one.events[-1]["type"] == "ValueError"
    assert (zero.after, one.after) == (1, None)


def test_a_rank_that_floods_the_pipe_for_notices(run):
    outcome = run(
        f"""
        {OTHERS}
        pipes = [one for one in descriptors if "pipe:" in os.path.realpath(f"/proc/self/fd/{{one}}")]
        while True:
            for one in pipes:
                with suppress(OSError):
                    os.write(one, b"x" * 4096)
        """,
        SUPPRESS,
    )
    assert not outcome.timed_out
    assert outcome.ranks[0].exit.startswith("the evidence of rank 0 has an invalid notice: 'xxxx")
