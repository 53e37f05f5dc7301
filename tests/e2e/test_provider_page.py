"""docs/operate/providers.md says what the tests over all providers found."""

from __future__ import annotations

import re
from pathlib import Path

from fast_agent.llm.provider_types import Provider as ProviderName

from tests.support.provider_matrix import CAPABILITIES, GAPS, PROVIDERS, UNTRIED

HERE = Path(__file__).parent
DECORATED = re.compile(r"^@(?:over_providers|in_shared_gateways)\((.+)\)$", re.MULTILINE)
NAME = re.compile(r'"([^"]+)"')


def test_each_capability_is_tried_over_all_providers() -> None:
    texts = (file.read_text() for file in HERE.glob("test_*.py"))
    found = (names for text in texts for names in DECORATED.findall(text))
    assert {name for names in found for name in NAME.findall(names)} == set(CAPABILITIES)


def test_each_gap_is_a_cell() -> None:
    assert set(GAPS) <= {(one.name, capability) for one in PROVIDERS for capability in CAPABILITIES}


def test_no_provider_of_fast_agent_is_left_out() -> None:
    listed = {one.name.partition(" ")[0] for one in PROVIDERS} | {name.partition(" ")[0] for name in UNTRIED}
    assert listed == {one.config_name for one in ProviderName if one is not ProviderName.FAST_AGENT}
