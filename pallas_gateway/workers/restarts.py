"""How soon a worker that has ended is replaced: at once, and later each time one after the other dies young."""

SETTLED_SECONDS = 60.0
"""Who has lived this long has not died of its start."""
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 15.0


def restart_seconds(deaths: int, lived_seconds: float) -> tuple[int, float]:
    """The count of early deaths in a row, this one included, and the pause before the next start, in seconds."""
    if lived_seconds >= SETTLED_SECONDS:
        deaths = 0
    if deaths == 0:
        return 1, 0.0
    return deaths + 1, min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(deaths - 1, 10))
