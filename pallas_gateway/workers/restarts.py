"""The pause before an ended worker is replaced: none at first, longer after each early end."""

SETTLED_SECONDS = 60.0
"""A worker that ran this long did not fail because of its start."""
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 15.0


def restart_seconds(deaths: int, lived_seconds: float) -> tuple[int, float]:
    """Return the number of early ends in a row, this one included, and the pause in seconds."""
    if lived_seconds >= SETTLED_SECONDS:
        deaths = 0
    if deaths == 0:
        return 1, 0.0
    return deaths + 1, min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(deaths - 1, 10))
