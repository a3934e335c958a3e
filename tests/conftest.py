"""House rules of all tests: pure ones run first, and no timing decides a property test.

Where CI is set the examples of property tests are the same in every run; elsewhere each run explores new ones.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, then those that start processes, then the long ones; else in the order found."""
    items.sort(key=lambda item: 2 * bool(item.get_closest_marker("long")) + bool(item.get_closest_marker("process")))
