"""What a refused body or query is told: every problem, by the names of keys, and never their values."""

from typing import Any

import pytest

from pallas_gateway.doors.api.models import parsed
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.features.threads.http.models import ChatRequest, GivenAnswers, NewFeedback, NewThread

SECRET = "secret-3f1c9a"
ID = "0123456789abcdef" * 2


NO_THREAD = "'threadId' must be the id of a thread, 32 hexadecimal digits"
NO_ACTION, NO_OBJECT = "must be 'accept', 'decline' or 'cancel'", "'answers.{}' must be an object"


def numbered(count: int, each: Any = None) -> dict[str, Any]:
    return dict.fromkeys(map(str, range(count)), each)


@pytest.mark.parametrize(
    ("model", "given", "told"),
    [
        (NewThread, {"title": 3}, "'title' must be text."),
        (NewThread, {"title": SECRET * 20}, "'title' must have at most 200 characters."),
        (NewThread, {"title": "half \ud83d"}, "'title' holds NUL or half a surrogate pair; send whole text."),
        (NewThread, {"title": "a\0"}, "'title' holds NUL or half a surrogate pair; send whole text."),
        (NewThread, {"name": SECRET}, "Unknown key 'name'. Known are: title."),
        (NewFeedback, {"rating": SECRET, "note": [SECRET]}, "'rating' must be 'good' or 'bad'; 'note' must be text."),
        (ChatRequest, {}, "'message' is required."),
        (ChatRequest, {"message": "a", "threadId": SECRET}, f"{NO_THREAD}."),
        (
            ChatRequest,
            {"message": "a", "threadId": SECRET, "replaces": 2**31, "b": 1, "c": 1},
            f"{NO_THREAD}; 'replaces' must be at most 2147483647; Unknown key 'b'; Unknown key 'c'. "
            "Known are: background, assistantStream, message, images, params, messages, threadId, replaces.",
        ),
        (ChatRequest, {"message": "a", "threadId": SECRET, "replaces": 2}, f"{NO_THREAD}."),
        (NewThread, numbered(100_000), "The body has 100000 keys, of which most are unknown."),
        (GivenAnswers, {"answers": {"q": {"action": "accept", "z": 1}}}, "Unknown key 'answers.q.z'."),
        (GivenAnswers, {"answers": {"q": numbered(13)}}, "'answers.q' has 13 keys, of which most are unknown."),
        (ChatRequest, {"message": "a", "background": 1}, "'background' must be true or false."),
        (ChatRequest, {"message": "a", "threadId": ID, "replaces": True}, "'replaces' must be a whole number."),
        (ChatRequest, {"message": "a", "replaces": 2}, "'replaces' takes a 'threadId': the thread of that turn."),
        (GivenAnswers, {"answers": [SECRET]}, "'answers' must be an object."),
        (GivenAnswers, {"answers": {"q": SECRET}}, "'answers.q' must be an object."),
        (GivenAnswers, {"answers": {"q": {"action": "yes"}}}, f"'answers.q.action' {NO_ACTION}."),
        (
            GivenAnswers,
            {"answers": numbered(12)},
            f"{'; '.join(NO_OBJECT.format(one) for one in range(10))}; and 2 more.",
        ),
        (GivenAnswers, {"answers": numbered(33, {"action": "decline"})}, "'answers' must have at most 32 entries."),
    ],
)
def test_a_refusal_names_every_problem_and_no_value(model: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(CallRefusedError) as refused:
        parsed(model, given)
    assert (refused.value.reason, str(refused.value)) == ("bad_input", told)
    assert SECRET not in str(refused.value)
