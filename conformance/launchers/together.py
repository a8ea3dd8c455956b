"""One case whose ranks lie on several machines: each runs its part, and all learn what becomes of the others."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from conformance.launchers.front import Agent
from conformance.runner.case.part import Part
from conformance.runner.case.supervision import LEAVE_LIMIT, START_LIMIT, late
from conformance.runner.front.client import SLACK, ForkServer, Outcome, RankOutcome, RunnerError
from conformance.runner.system.protocol import Channel


class Share:
    """The ranks that one machine runs, and what is known of them.

    Attributes:
        started, through: what `conformance.runner.case.supervision` tells of all of them.
        outcome: theirs, once it is here. unheard: why none will come.
    """

    def __init__(self, agent: Agent, server: ForkServer, ranks: tuple[int, ...]) -> None:
        self.agent = agent
        self.server = server
        self.ranks = ranks
        self.channel: Channel | None = None
        self.started = self.through = False
        self.outcome: Outcome | None = None
        self.unheard: str | None = None

    @property
    def ended(self) -> bool:
        return self.outcome is not None or self.unheard is not None

    def begin(self, spec: dict[str, Any], time_limit: float, address: str, port: int | None) -> Channel:
        """The connection by which it will be heard. Raises what `ForkServer` raises."""
        part = Part(self.ranks, address, port, self.agent.hello.interface)
        self.channel = self.server.channel()
        self.tell({"spec": spec, "time_limit": time_limit, "part": part.to_dict()})
        return self.channel

    def tell(self, message: dict[str, Any]) -> None:
        """A server that is gone is noticed by its silence."""
        if self.channel is not None and not self.ended:
            with suppress(OSError):
                self.channel.send(message)


class Together:
    """``spec`` on all of ``shares``; the first keeps the rendezvous."""

    def __init__(self, shares: Sequence[Share], spec: dict[str, Any], time_limit: float) -> None:
        self._shares = shares
        self._spec = spec
        self._time_limit = time_limit
        self._first_failed: tuple[bool, int] | None = None
        self._harness: str | None = None
        self._started = self._late = self._released = False

    def run(self) -> Outcome:
        """Raises RunnerError, and what `ForkServer` raises."""
        began = monotonic()
        first = self._shares[0]
        self._deadline = began + START_LIMIT + SLACK
        with selectors.DefaultSelector() as self._selector:
            try:
                self._begin(first, None)
                while not all(share.ended for share in self._shares):
                    for key, _ in self._selector.select(max(0.0, self._deadline - monotonic())):
                        share, channel = key.data
                        if not share.ended:
                            self._hear(share, channel)
                    self._advance()
            except BaseException:
                for share in self._shares:
                    if share.channel is not None and share.outcome is None:
                        share.server.bury(0.0)
                raise
        if self._harness is not None:
            raise RunnerError(f"{self._spec['case']}: {self._harness}")
        ranks = sorted(
            (replace(rank, host=share.agent.name) for share in self._shares for rank in self._ranks(share)),
            key=lambda rank: rank.rank,
        )
        timed_out = any(share.outcome is not None and share.outcome.timed_out for share in self._shares)
        return Outcome(tuple(ranks), monotonic() - began, timed_out)

    def _begin(self, share: Share, port: int | None) -> None:
        channel = share.begin(self._spec, self._time_limit, self._shares[0].agent.hello.address, port)
        self._selector.register(share.agent.channel, selectors.EVENT_READ, (share, None))
        self._selector.register(channel, selectors.EVENT_READ, (share, channel))

    def _hear(self, share: Share, channel: Channel | None) -> None:
        if channel is None:
            # Agents speak when they are asked, and nobody has.
            share.agent.lost = True
            self._give_up(share, f"our process on {share.agent.name} is gone")
            return
        while True:
            try:
                message = channel.receive(SLACK)
            except OSError:
                message = None
            if message is None:
                self._give_up(share)
                return
            self._note(share, message)
            if share.ended or not channel.holds_message:
                return

    def _note(self, share: Share, message: dict[str, Any]) -> None:
        match message:
            case {"port": port}:
                for other in self._shares[1:]:
                    self._begin(other, port)
            case {"started": True}:
                share.started = True
            case {"failed": rank, "raised": raised}:
                self._fail(raised, rank)
            case {"late": because}:
                self._tell_late(because)
            case {"through": True}:
                share.through = True
            case {"failure": reason}:
                self._harness = f"{share.agent.name}: {reason}"
                self._give_up(share, reason)
            case _:
                share.outcome = Outcome.from_dict(message)
                self._forget(share)

    def _advance(self) -> None:
        """Do what is due."""
        if not self._started and all(share.started or share.ended for share in self._shares):
            self._started = True
            self._deadline = monotonic() + self._time_limit
        if not self._released and all(share.through or share.ended for share in self._shares):
            self._released = True
            self._tell({"release": True})
            self._deadline = monotonic() + LEAVE_LIMIT + SLACK
        if monotonic() < self._deadline:
            return
        if self._late or self._released:
            for share in self._shares:
                if not share.ended:
                    self._give_up(share, f"nothing more came from {share.agent.name}")
        else:
            self._tell_late(late(self._time_limit if self._started else None))
            self._deadline = monotonic() + LEAVE_LIMIT + SLACK

    def _tell_late(self, because: str) -> None:
        if not self._late:
            self._late = True
            self._tell({"late": because})

    def _fail(self, raised: bool, rank: int) -> None:
        """Of two failures the lesser came first: a death without a word before what peers raise of it."""
        if self._first_failed is None or raised < self._first_failed[0]:
            self._first_failed = raised, rank
            self._tell({"failed": rank})

    def _give_up(self, share: Share, why: str | None = None) -> None:
        """No more is expected of a share; ``why``, unless its server has hung up."""
        self._forget(share)
        how = share.server.bury() if why is None else share.server.bury(0.0)
        why = share.unheard = why or f"on {share.agent.name} {how}"
        self._fail(False, share.ranks[0])
        for other in self._shares:
            if other.channel is None:
                other.unheard = f"not started: {why}"

    def _forget(self, share: Share) -> None:
        for channel in (share.channel, share.agent.channel):
            if channel is not None and channel.fileno() in self._selector.get_map():
                self._selector.unregister(channel)

    def _tell(self, message: dict[str, Any]) -> None:
        for share in self._shares:
            share.tell(message)

    def _ranks(self, share: Share) -> tuple[RankOutcome, ...]:
        if share.outcome is not None:
            return share.outcome.ranks
        first = None if self._first_failed is None else self._first_failed[-1]
        lost = tuple(RankOutcome(rank, (), False, share.unheard or "", "", None) for rank in share.ranks)
        return tuple(rank if first in (None, rank.rank) else replace(rank, after=first) for rank in lost)
