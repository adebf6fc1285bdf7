"""Draws of numpy's generators with fixed seeds, most of them beyond 32 bits.

`draws.json` has the results of CPython's numpy 2.5.5 with 64-bit addresses: `python draws.py > draws.json`.
"""

import json

import numpy as np

HUGE = 10**12


def raised(work):
    try:
        return work()
    except Exception as error:
        return type(error).__name__


def plain(value):
    """Returns the value as JSON values, rounded: C libraries differ in the last bit of a float."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(each) for each in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


# A generator's draws with numbers of more than 32 bits, and with small ones.
NEW = {
    "choice": lambda r: r.choice(10**10, 3, replace=False),
    "choice unshuffled": lambda r: r.choice(10**10, 3, replace=False, shuffle=False),
    "choice one": lambda r: r.choice(HUGE),
    "choice again": lambda r: r.choice(HUGE, 3),
    "choice tail": lambda r: r.choice(20_000, 5_000, replace=False)[:4],
    "choice floyd": lambda r: r.choice(20_000, 30, replace=False)[:4],
    "choice weighted": lambda r: r.choice(4, 3, replace=False, p=[0.1, 0.2, 0.3, 0.4]),
    "integers": lambda r: r.integers(HUGE, size=3),
    "integers all": lambda r: r.integers(0, 2**64, dtype=np.uint64, size=2),
    "integers small": lambda r: r.integers(-5, 5, size=4, endpoint=True),
    "permutation": lambda r: r.permutation(7),
    "permuted": lambda r: r.permuted(np.arange(6).reshape(2, 3), axis=1),
    "binomial": lambda r: r.binomial(HUGE, 0.3, size=2),
    "hypergeometric": lambda r: r.hypergeometric(4 * 10**8, 4 * 10**8, 10**8, size=2),
    "multivariate": lambda r: r.multivariate_hypergeometric([16, 8, 4], 6),
    "multinomial": lambda r: r.multinomial(HUGE, [0.2, 0.3, 0.5]),
    "negative binomial": lambda r: r.negative_binomial(HUGE, 0.4, size=2),
    "zipf": lambda r: r.zipf(1.05, size=5),
    "poisson": lambda r: r.poisson(1e10, size=2),
    "geometric": lambda r: r.geometric(1e-11, size=2),
    "logseries": lambda r: r.logseries(0.999999, size=4),
    "normal": lambda r: r.standard_normal(2),
    "gamma": lambda r: r.gamma(2.5, size=2),
    "bytes": lambda r: r.bytes(5).hex(),
}
OLD = {
    "randint": lambda r: r.randint(HUGE, size=3),
    "randint one": lambda r: r.randint(-HUGE, HUGE),
    "randint small": lambda r: r.randint(5, size=4),
    "random_integers": lambda r: r.randint(0, 2**63 - 1),
    "tomaxint": lambda r: r.tomaxint(2),
    "choice": lambda r: r.choice(HUGE, 3),
    "choice weighted": lambda r: r.choice(4, 3, p=[0.1, 0.2, 0.3, 0.4]),
    "choice without": lambda r: r.choice(9, 3, replace=False),
    "permutation": lambda r: r.permutation(7),
    "binomial": lambda r: r.binomial(HUGE, 0.3),
    "binomial many": lambda r: r.binomial([HUGE, 5], 0.3),
    "binomial size": lambda r: r.binomial(HUGE, 0.3, size=2),
    "hypergeometric": lambda r: r.hypergeometric(10**10, 10**10, 10**10, size=2),
    "multinomial": lambda r: r.multinomial(HUGE, [0.2, 0.3, 0.5], size=2),
    "negative binomial": lambda r: r.negative_binomial(HUGE, 0.4, size=2),
    "zipf": lambda r: r.zipf(1.05, size=5),
    "poisson": lambda r: r.poisson(1e10, size=2),
    "poisson too much": lambda r: r.poisson(1e30),
    "geometric": lambda r: r.geometric(1e-11, size=2),
    "logseries": lambda r: r.logseries(0.999999, size=4),
    "normal": lambda r: r.standard_normal(2),
    "noncentral": lambda r: r.noncentral_chisquare(3, 1e10, size=2),
    "bytes": lambda r: r.bytes(5).hex(),
}


def draws():
    found = {f"new {name}": plain(raised(lambda: draw(np.random.default_rng(7)))) for name, draw in NEW.items()}
    found |= {f"old {name}": plain(raised(lambda: draw(np.random.RandomState(7)))) for name, draw in OLD.items()}
    np.random.seed(7)
    found["global"] = plain(np.random.randint(HUGE, size=2))
    return found


if __name__ == "__main__":
    print(json.dumps(draws(), indent=1))
