"""Some dozens of hostile cases for every reader; `tools/fuzz.py` runs more of the same."""
import pytest
from hypothesis import HealthCheck, settings

from fuzzing import PROPERTIES


@pytest.mark.parametrize('prop', PROPERTIES, ids=lambda prop: prop.__name__)
def test_hostile_input_is_read_right_or_refused_clearly(prop):
    settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))(prop)()
