"""The factors that solve all equations are those that rounding allows, and no others."""

from conformance.watch.judging.factor import Equation, Factor, solve


def equation(used, local, slack=0.0, spread=0.0):
    return Equation(used, local, slack, spread, 0)


def test_one_factor_for_all():
    assert solve([equation(1.0, 2.0), equation(-3.0, -6.0)]) == Factor(0.5, 0.5)
    assert solve([equation(1.0, 2.0), equation(-3.0, -6.1)]) is None


def test_rounding_widens_it():
    factor = solve([equation(1.0, 2.0, slack=0.1), equation(3.0, 6.0, spread=0.6)])
    assert factor == Factor(3 / 6.6, 0.55)
    assert factor.is_known


def test_no_negative_factor():
    assert solve([equation(1.0, -2.0)]) is None


def test_nothing_is_known_where_all_is_rounding():
    assert not solve([equation(1.0, 1.0, slack=1.0)]).is_known
    assert not solve([equation(0.0, 0.0)]).is_known
