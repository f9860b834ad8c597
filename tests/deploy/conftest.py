"""Tests that are coroutines have a loop of their own."""

from tests.coroutines import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
