"""The coefficients in the kernels are those that the script finds."""

import fit_approximations
import numpy as np
import pytest

from tvmfuse.kernels import approx

USED = {"exp": (approx._EXP,), "tanh": approx._TANH, "erf": approx._ERF}


@pytest.fixture(scope="module")
def fits():
    return fit_approximations.fits()


@pytest.mark.parametrize("name", USED)
def test_the_fit_gives_the_coefficients_in_use(name, fits):
    for found, used in zip(fits[name].coefficients, USED[name], strict=True):
        # Libraries of linear algebra differ in the last digits of the smaller coefficients.
        np.testing.assert_allclose(found, used, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "limit"), [("tanh", approx._TANH_LIMIT), ("erf", approx._ERF_LIMIT)]
)
def test_an_odd_function_is_one_beyond_the_limit_in_use(name, limit):
    problem = fit_approximations.ODD_FUNCTIONS[name]
    assert problem.limit == limit
    assert 1 - problem.function(limit) < np.finfo("float32").epsneg


def test_the_errors_are_those_between_the_points_as_well(fits):
    odd = fit_approximations.ODD_FUNCTIONS
    cases = {
        "exp": (np.exp, np.linspace(-0.3465, 0.3465, 10_007)),
        **{name: (odd[name].function, np.linspace(1e-3, odd[name].limit, 10_007)) for name in odd},
    }
    for name, (function, x) in cases.items():
        values = [
            np.polyval(c[::-1], x if name == "exp" else x**2) for c in fits[name].coefficients
        ]
        found = values[0] if name == "exp" else x * values[0] / values[1]
        error = np.abs(found / function(x) - 1).max()
        assert error == pytest.approx(fits[name].error, rel=0.05)


def test_the_script_prints_every_function(capsys, fits, monkeypatch):
    monkeypatch.setattr(fit_approximations, "fits", lambda: fits)
    fit_approximations.main()
    printed = capsys.readouterr().out
    assert all(f"{name}: relative error" in printed for name in USED)
    assert f"{approx._TANH[0][0]:.7g}" in printed
