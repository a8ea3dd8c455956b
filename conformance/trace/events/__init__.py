"""The kinds of event that a rank reports, one class each: when it is noted, its fields, and its label for people.

A trace holds events as JSON objects with these fields; `read` makes them instances of their classes. The recorder
writes them (`conformance.trace.recorder`), except for what only a whole trace shows: `conformance.trace.hindsight` adds
that when a rank has ended. `python -m tools.trace_schema` renews what is generated from here: the tables of
TRACE.md and trace-schema.json.

Weights and gradients are those of the watched model: all elements of its parameters, in the order of
``model.parameters()``, null where there is no value. Of models of more than 4096 elements no values are read: there the
whole vector is null. ``parameters`` are positions in ``model.parameters()``; optimizers, scalers, schedulers and models
are numbered in order of first sight.
"""

# ruff: noqa: F403, I001
# In the order of a run, which `KINDS` and so the tables have.
from conformance.trace.events.event import *
from conformance.trace.events.beginning import *
from conformance.trace.events.passes import *
from conformance.trace.events.steps import *
from conformance.trace.events.lines import *
