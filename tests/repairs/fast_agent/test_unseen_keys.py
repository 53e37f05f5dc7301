"""Keys of logins are in logs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import HF

KEY = "hf-of-a-login-4711"


async def test_a_key_that_no_setting_holds_is_not_in_the_reason_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(KEY)
    monkeypatch.setenv("HF_TOKEN", "")
    # A process reads the variable HF_TOKEN_PATH once, and may have done so in an earlier test.
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    provider = replace(HF, config={"base_url": "{url}/v1"})
    async with serving(tmp_path / "p", provider, lambda _: served.llm.refuse(403, f"no entry for {KEY}")) as served:
        answer = await ask(served.url)

    assert served.llm.requests[0].bearer == KEY
    assert answer.text.endswith("no entry for ****")
