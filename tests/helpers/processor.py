"""Abilities of this processor."""

import pytest

from gluon_optbert.runs.machine import cpu_flags

HAS_BFLOAT16 = 'avx512bw' in cpu_flags()
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason='MXNet has no bfloat16 on this processor')
