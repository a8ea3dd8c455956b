"""Synthetic streams of a small script: the gradients that each rank computes, and those that its step uses."""

import torch

from conformance.watch import records
from conformance.watch.judging.watch_judge import judged
from conformance.watch.sketch import Sketching
from conformance.watch.verdict import verdict

SHAPES = ((6, 5), (6,), (4, 6), (4,), (9, 3), (9,))
LINE = ["train.py", 7, "main"]
sketching = Sketching()


def gradients(seed, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def total(several, factor=1.0):
    return [factor * torch.stack(list(of_one)).sum(0) for of_one in zip(*several, strict=True)]


def sketches(tensors):
    return sketching.finish([sketching.take(tensor) for tensor in tensors]).tolist() if tensors else []


def stepped(held, used=(), weights=(), optimizer=0, kind="SGD", rate=0.1, **more):
    """A step of these parameters. used, weights: their gradients and weights; empty for none."""
    return records.Stepped(
        optimizer, kind, [rate], [*held], [], False, None, False, "float32",
        [*held] if used else [], sketches(used), [*held] if weights else [], sketches(weights), LINE, **more,
    )  # fmt: skip


class Script:
    """The records of all ranks. drift: of the weights between ranks. shared: ranks exchange weights first."""

    def __init__(self, ranks=2, drift=0.0, shapes=SHAPES, shared=True):
        self.ranks, self.drift, self.shapes = ranks, drift, shapes
        self.streams = [[records.Began(rank, rank, ranks, "launch")] for rank in range(ranks)]
        self.numbers = [*range(len(shapes))]
        for stream in self.streams:
            stream += [records.Parameter(n, list(shapes[n]), "float32", 1, f"p{n}") for n in self.numbers]
            stream.append(records.Optimizer(0, "SGD", self.numbers))
            stream += [records.Shared(0)] if shared else []
        self.backwards, self.steps = 0, 0

    def backward(self, scale=None, factors=(), targets=None, ranks=None, loader=None):
        """Adds a micro-batch and returns its gradients by rank. ranks: default all. loader: of the batches."""
        self.backwards += 1
        computed = [gradients(100 * self.backwards + rank, self.shapes) for rank in range(self.ranks)]
        for rank, (stream, of_rank) in enumerate(zip(self.streams, computed, strict=True)):
            if ranks is not None and rank not in ranks:
                continue
            begins = records.Backward(self.backwards, scale, [*factors], targets, self.versions, False, False, LINE)
            begins.loader, begins.batches = loader, int(loader is not None)
            stream.append(begins)
            scaled = total([of_rank], scale or 1.0)
            stream.append(records.Local(self.backwards, self.numbers, [], "float32", sketches(scaled)))
        return [total([of_rank], scale or 1.0) for of_rank in computed]

    @property
    def versions(self):
        """Versions of the weights, which change with each step."""
        return {"0": self.steps}

    def each(self, record):
        for stream in self.streams:
            stream.append(record)

    def step(self, used, ranks=None, rate=0.1):
        """Adds a step. used: the gradients by rank."""
        for rank in range(self.ranks) if ranks is None else ranks:
            weights = total([gradients(7 + self.steps, self.shapes)], 1 + self.drift * rank * self.steps)
            self.streams[rank].append(stepped(self.numbers, used[rank], weights, rate=rate))
        self.steps += 1

    def clear(self):
        self.each(records.Cleared(self.numbers, self.versions, LINE))

    def findings(self):
        self.each(records.Ended())
        return judged(self.streams)


def laws(findings):
    return {law for law, _ in findings.causes}


def shown(findings):
    """The violated laws, or else the verdict."""
    return laws(findings) or verdict(findings)


def trained(window, times=3, clears=True, **options):
    """The findings of a script. window: adds a window and returns the gradients that each rank's step uses."""
    script = Script(**options)
    for _ in range(times):
        script.step(window(script))
        if clears:
            script.clear()
    return script.findings()


def averaged(*passes, factor=0.5):
    """This factor times the sum of all gradients, for both ranks. passes: the gradients by rank."""
    return [total([of_rank for computed in passes for of_rank in computed], factor)] * 2


def accused():
    """The findings of two ranks: a correct step, then steps on each rank's own gradients."""
    script = Script(drift=0.1)
    script.each(records.Source(LINE[0], LINE[1], "/home/me/train.py", "optimizer.step()  # <b>"))
    script.each(records.Named({str(number): f"layer.{number}" for number in script.numbers}))
    for right in (True, False, False):
        computed = [script.backward(), script.backward()]
        own = [total([micro_batch[rank] for micro_batch in computed]) for rank in range(2)]
        script.step([total(own, 0.5)] * 2 if right else own)
        script.clear()
    return script.findings()
