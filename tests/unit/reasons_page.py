"""Writes docs/use/error-reasons.md from the reasons in `errors.py`."""

from pallas_gateway.errors import FAILURES, REFUSALS

INTRODUCTION = """\
# Reasons of failed calls

<!-- Made by `make docs` from `errors.py`. -->

One word says why a call has no answer: `stop_reason` in `_meta["pallas/call"]`, `reason` in the log and in
`pallas_calls_refused_total`. The sentence of the error says what to do. A tool that is
[run](console.md#run-a-tool) by itself is a call, too.
"""


def markdown() -> str:
    """Return the page `docs/use/error-reasons.md`."""
    of_refused, of_failed = (
        "".join(f"| `{reason}` | {meaning} |\n" for reason, meaning in reasons.items())
        for reasons in (REFUSALS, FAILURES)
    )
    head = "| reason | meaning |\n|---|---|\n"
    return f"{INTRODUCTION}\n## Refused, not started\n\n{head}{of_refused}\n## Failed\n\n{head}{of_failed}"
