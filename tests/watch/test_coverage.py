"""Parameters with gradients but no steps, or in an optimizer but without gradients; optimizers that stop."""

import gc
import io
import linecache
import re
from functools import partial

import pytest
import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard

from conformance.watch import records
from conformance.watch.judging.properties import Property
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.report.digest import lines

from .scripts import Script, gradients, shown, stepped
from .trained import judged_by, loss, network, records_in, watched


def facts(findings):
    return {code: fact.says.values for code, fact in findings.open.items()}


def steps(changes=lambda model, step: None, held=lambda model: model.parameters(), count=20):
    """changes: changes gradients before the step. held: the parameters of the optimizer."""
    model = network()
    optimizer = torch.optim.SGD(held(model), lr=0.1)
    for step in range(count):
        model.zero_grad()
        loss(model).backward()
        changes(model, step)
        optimizer.step()


def takes_away(model, step, since=0, until=99):
    if since <= step < until:
        model[0].weight.grad = None


def with_unused(model):
    return [*model.parameters(), nn.Parameter(torch.ones(2))]


def of_an_old_layer(model):
    held = [*model.parameters()]
    del model[2]
    model.append(nn.Linear(5, 2))
    return held


def replaced(change, until=20):
    """change: of a model, after its optimizer was made; returns more parameters to step from some step on."""

    def trains():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        more = change(model)
        for step in range(20):
            optimizer.zero_grad()
            model.zero_grad()
            loss(model).backward()
            optimizer.step()
            with torch.no_grad():
                for one in more if step > until else ():
                    one -= 0.1 * one.grad

    return trains


def new_head(model):
    model[2] = nn.Linear(model[2].in_features, model[2].out_features + 1)
    return [*model[2].parameters()]


def new_twice(model):
    new_head(model)
    return new_head(model)


def new_weight(model):
    model[2].weight = nn.Parameter(torch.randn_like(model[2].weight))
    return [model[2].weight]


def keeps_the_old(model):
    """The old layer is still there, under another name."""
    old = model[2]
    model[2] = nn.Sequential(old, nn.Linear(old.out_features, 2))
    return []


def tied(model):
    """The old weight is a part of the new one's graph, and trained."""
    old = model[2]
    new_head(model)
    model[2].register_forward_hook(lambda module, given, result: result + old(*given).mean())
    return []


@pytest.mark.parametrize(
    ("trains", "names"),
    [
        (replaced(new_head), ["2.bias", "2.weight"]),
        (replaced(new_twice), ["2.bias", "2.weight"]),
        (replaced(new_weight), ["2.weight"]),
        (replaced(new_head, until=10), None),
        (replaced(keeps_the_old), None),
        (replaced(tied), None),
    ],
)
def test_replaced_parameters(trains, names):
    causes = watched(trains).causes
    assert [one.first.says.values["names"] for one in causes.values()] == ([] if names is None else [names])


def behind_a_zero(model):
    """As LoRA with its second factor frozen, which starts as zeros."""
    nn.init.zeros_(model[2].weight)
    model[2].requires_grad_(False)
    return model[0].parameters()


def cancels():
    """As a critic that tells real samples from made ones: the last bias has no influence."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        model.zero_grad()
        (model(torch.randn(8, 6)).sum() - model(torch.randn(8, 6)).sum()).backward()
        optimizer.step()


def resumes(kept, loaded, optimizer=torch.optim.Adam, *, starts_fresh=False):
    """kept: the parts in a checkpoint, 0 for the model and 1 for the optimizer. loaded: those that continue with it.
    starts_fresh: the weights are those of a new model, although the checkpoint is read."""

    def build():
        model = network()
        return model, optimizer(model.parameters(), lr=0.1)

    def trains(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()

    def trains_again():
        before, after, file = build(), build(), io.BytesIO()
        trains(*before)
        torch.save({"parts": [before[number].state_dict() for number in kept]}, file)
        file.seek(0)
        states = dict(zip(kept, torch.load(file)["parts"], strict=True))
        if starts_fresh:
            states[0] = build()[0].state_dict()
        for number in loaded:
            after[number].load_state_dict(states[number])
        trains(*after)

    return trains_again


@pytest.mark.parametrize(
    ("trains", "is_open"),
    [
        (resumes((0, 1), (0,)), True),
        (resumes((0, 1), (0, 1)), False),
        (resumes((0, 1), (1, 0)), False),
        (resumes((0, 1), ()), False),
        (resumes((0,), (0,)), False),
        (resumes((0, 1), (0,), torch.optim.SGD), False),
        (resumes((0, 1), (0,), starts_fresh=True), False),
    ],
)
def test_an_optimizer_continues_with_the_state_in_the_checkpoint_of_its_weights(trains, is_open):
    assert [*watched(trains).open] == ["coverage.without-state"] * is_open


HEAD = partial(steps, held=lambda model: model[2].parameters())


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (steps, {}),
        (HEAD, {"coverage.unheld": {"count": 2}}),
        (partial(steps, held=with_unused), {"coverage.no-gradient": {"count": 1, "all": 5}}),
        (
            partial(steps, held=of_an_old_layer),
            {"coverage.outdated": {"count": 2, "idle": 2, "names": ["2.bias", "2.weight"]}},
        ),
        (partial(steps, held=behind_a_zero), {"coverage.zero-gradient": {"count": 2, "all": 2, "step": 20}}),
        (cancels, {}),
        (partial(steps, takes_away), {"coverage.left-out": {"count": 1, "all": 4, "names": ["0.weight"]}}),
        (partial(steps, partial(takes_away, until=10)), {}),
        (partial(steps, partial(takes_away, since=10), count=40), {}),
    ],
)
def test_parameters_without_gradients_or_steps(trains, expected):
    # Optimizers that still exist would get the first numbers of parameters.
    gc.collect()
    findings = watched(trains)
    found = {code: said for code, said in facts(findings).items() if code.startswith("coverage")}
    assert not findings.causes
    assert found.keys() == expected.keys()
    assert {code: {name: found[code][name] for name in values} for code, values in expected.items()} == expected


def test_an_open_fact_of_an_optimizer_has_the_line_that_makes_it():
    # An optimizer that exists before is noted first, at another line.
    older = torch.optim.SGD(network().parameters(), lr=0.1)

    def after_a_short_training():
        model = network()
        other = torch.optim.Adam(model.parameters())
        loss(model).backward()
        other.step()
        HEAD()

    # The parameters of the other model do not count.
    assert facts(watched(after_a_short_training))["coverage.unheld"]["all"] == 4
    for trains, code in (
        (HEAD, "coverage.unheld"),
        (after_a_short_training, "coverage.unheld"),
        (partial(steps, held=with_unused), "coverage.no-gradient"),
    ):
        path, line, *_ = watched(trains).open[code].site
        assert path.endswith("test_coverage.py")
        assert "torch.optim.SGD(held(model)" in linecache.getline(__file__, line)
    assert older.param_groups


def test_the_first_line_says_what_to_check():
    first, *_ = lines(watched(HEAD))
    assert first.startswith("1 question, otherwise CONFORMS: coverage (")
    assert re.search(r"test_coverage\.py:\d+\); .* steps used the correct gradients\.$", first)


def test_covered_parameters_are_counted():
    assert watched(steps).seen[Property.COVERAGE] == 4
    assert watched(HEAD).seen[Property.COVERAGE] == 2


def test_an_optimizer_that_is_kept_for_its_schedule():
    """Its scalar parameter has the shape of a bias of the model, which is updated by hand."""

    def trains():
        model = network()
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        for _ in range(10):
            model.zero_grad()
            loss(model).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(optimizer.param_groups[0]["lr"] * parameter.grad)
            optimizer.step()

    assert shown(watched(trains)) == "UNDECIDED"


def each_layer(left_out, passes=12, detaches=False):
    """left_out: the layers whose optimizer skips the step after a pass."""

    def trains():
        body, head = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 1)
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (body, head)]
        for step in range(passes):
            for optimizer in optimizers:
                optimizer.zero_grad()
            features = body(torch.randn(8, 6))
            head(features.detach() if detaches else features).square().mean().backward()
            for number, optimizer in enumerate(optimizers):
                if number not in left_out(step):
                    optimizer.step()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (each_layer(lambda step: (0,)), (0, 12)),
        (each_layer(lambda step: ()), None),
        (each_layer(lambda step: (step % 2,)), None),
        (each_layer(lambda step: (0,) if step < 9 else ()), None),
        (each_layer(lambda step: (0,), detaches=True), None),
        (each_layer(lambda step: (0,) if step > 4 else (), 16), (5, 11)),
        (each_layer(lambda step: (0, 1) if step > 4 else (), 16), (5, 11)),
        (each_layer(lambda step: (0,) if step > 4 else (), 12), None),  # it may still step
        (each_layer(lambda step: (0,) if step % 8 else (), 40), None),
    ],
)
def test_an_optimizer_that_stops(trains, expected):
    said = facts(watched(trains)).get("coverage.no-more-steps")
    assert (said and (said["steps"], said["passes"])) == expected


@pytest.mark.parametrize(
    ("shapes", "steps", "expected"),
    [
        ([[6, 5], [6], [4, 6], [4], [9, 3], [9], [6, 5]], 3, [3]),
        ([[6, 5], [6]], 3, []),  # another model
        ([[6, 5], [6], [4, 6], [4], [9, 3], [9]], 0, []),
    ],
)
def test_training_continues_with_a_copy(shapes, steps, expected):
    script = Script(ranks=1)
    for _ in range(3):
        script.step(script.backward())
        script.clear()
    script.each(records.Unheld([f"p{n}" for n in range(len(shapes))], shapes))
    for _ in range(steps):
        script.each(stepped(script.numbers))
    causes = script.findings().causes.values()
    assert [one.first.step for one in causes if one.first.law == "watch/held"] == expected


def test_models_without_values_are_no_problem():
    model, on_meta, mode = nn.Linear(6, 1), nn.Linear(6, 1, device="meta"), FakeTensorMode()
    with mode:
        fake = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def trains():
        for _ in range(10):
            loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            on_meta(torch.randn(8, 6, device="meta")).sum().backward()
            with mode:
                fake(torch.randn(8, 6)).sum().backward()

    assert not watched(trains).lacks


# Names of parameters without an optimizer.


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        self.head = nn.Linear(2, 1, bias=False)

    def forward(self, rows):
        return nn.functional.linear(self.body(rows), self.head.weight)


def replaced_attribute(model, _):
    model.head.weight = nn.Parameter(torch.ones(1, 2))
    return lambda rows: model(rows).sum()


def replaced_in_a_model_that_is_never_called(model, _):
    """The script calls `forward` instead."""
    model.head.weight = nn.Parameter(torch.ones(1, 2))
    return lambda rows: model.forward(rows).sum()


def second_of_two(model, other):
    return lambda rows: model(rows).sum() + other(rows).sum()


def of_no_module(model, _):
    alone = nn.Parameter(torch.ones(1))
    return lambda rows: model(rows).sum() * alone


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (replaced_attribute, ["head.weight"]),
        (replaced_in_a_model_that_is_never_called, ["Named.head.weight"]),
        (second_of_two, ["Sequential.0.weight", "Sequential.1.weight"]),
        (of_no_module, ["a parameter of shape (1,)"]),
    ],
)
def test_names_of_parameters_without_an_optimizer(tmp_path, change, expected):
    model = Named()
    other = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False))
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        loss = change(model, other)
        for _ in range(3):
            optimizer.zero_grad()
            loss(torch.ones(4, 3)).backward()
            optimizer.step()
    assert sorted([one for one in found if isinstance(one, records.Unheld)][-1].names) == expected


# Parameters of FSDP2 without an optimizer, or with steps that the model never uses.


@pytest.fixture
def alone():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def before(model):
    """An optimizer of tensors that sharding replaces."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    return optimizer


def after(model):
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def after_but_the_head(model):
    fully_shard(model)
    return torch.optim.SGD(model[:2].parameters(), lr=0.1)


def never_gathered_again(model):
    fully_shard(model)
    model.set_reshard_after_backward(False)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def gathered_by_hand(model):
    """Again after each step."""
    fully_shard(model)
    model.set_reshard_after_backward(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: model.reshard())
    return optimizer


@pytest.mark.parametrize(
    ("make", "expected", "says"),
    [
        (before, {"watch/held"}, None),
        (after, "CONFORMS", None),
        (never_gathered_again, {"watch/cleared", "watch/held"}, None),
        (gathered_by_hand, "CONFORMS", None),
        (after_but_the_head, "CONFORMS", "2."),
    ],
)
def test_parameters_of_fsdp2(tmp_path, alone, make, expected, says):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    def trains():
        optimizer = make(model)
        for _ in range(5):
            model(torch.randn(6, 5)).square().mean().backward()
            optimizer.step()
            # Not the optimizer, which may have other tensors.
            model.zero_grad()

    findings = judged_by(Judge(), tmp_path, trains)
    assert shown(findings) == expected
    assert says is None or any(name.startswith(says) for name in findings.open["coverage.unheld"].says.values["names"])


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("step", None, {"watch/has-gradient"}),
        ("step", "step", "CONFORMS"),  # one more step uses the last gradients
        ("other line", None, "CONFORMS"),  # a step that only makes the state of the optimizer
    ],
)
def test_a_step_before_its_backward_pass(first, last, expected):
    def train():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if first == "other line":
            optimizer.step()
        for batch in range(6):
            if first == "step" or batch:
                optimizer.step()
            optimizer.zero_grad()
            loss(model).backward()
        if last == "step":
            optimizer.step()

    assert shown(watched(train)) == expected


@pytest.mark.parametrize(("owned", "expected"), [((0, 1, 2), ["p3"]), ((0, 1, 2, 3), None)])
def test_gradients_that_no_step_on_any_rank_uses(owned, expected):
    """Each rank owns a part of a model, and the optimizer of all of it never steps."""
    script = Script(shapes=((6, 5), (6,), (4, 6), (4,)))
    held = [[number for number in owned if number % 2 == rank] for rank in range(2)]
    for rank, stream in enumerate(script.streams):
        stream.append(records.Optimizer(1, f"SGD{rank}", held[rank]))
    for _ in range(4):
        computed = script.backward()
        for rank, stream in enumerate(script.streams):
            used = [computed[rank][number] for number in held[rank]]
            stream.append(stepped(held[rank], used, optimizer=1, kind=f"SGD{rank}"))
        script.clear()
    assert facts(script.findings()).get("coverage.of-no-step", {}).get("names") == expected


@pytest.mark.parametrize(("left", "expected"), [([], None), (["q2"], ["q2"]), (["p0"], ["p0"])])
def test_a_parameter_that_another_rank_steps_belongs_to_an_optimizer(left, expected):
    """Each rank steps one of q0 and q1. left: in no optimizer; p0 is of another model with equal names."""
    script = Script()
    for number in (90, 91):
        script.each(records.Parameter(number, [6, 5], "float32", 1, f"q{number - 90}"))
    for rank, stream in enumerate(script.streams):
        stream.append(records.Optimizer(1, f"SGD{rank}", [90 + rank]))
        stream.append(records.Unheld([f"q{1 - rank}", *left], [[6, 5]] * (1 + len(left))))
        stream.append(stepped([90 + rank], gradients(1)[:1], optimizer=1, kind=f"SGD{rank}"))
    script.step(script.backward())
    assert facts(script.findings()).get("coverage.unheld", {}).get("names") == expected
