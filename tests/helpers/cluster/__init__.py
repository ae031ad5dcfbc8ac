import pytest

# Assertions of a module that holds no tests of its own explain themselves only when this is said before its import.
pytest.register_assert_rewrite("tests.helpers.cluster.backend_contract")
