"""Results of tools in forms that servers send and the protocol does not have, or that models cannot use as they are.

For each, what a model of OpenAI's chat completions reads: fast-agent joins texts by spaces.
"""

from typing import Any

RED = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
TEXT = {"type": "text", "text": "booked"}
IMAGE = {"type": "image", "data": RED, "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "https://files.example/7.pdf", "mimeType": "application/pdf"}
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
FAILED = "The tool failed and gave no reason."


def unread(why: str, *read: str, began: str = "The tool ran") -> str:
    some = "a part of its answer" if read else "its answer"
    return " ".join([*read, f"{began}; {some} cannot be read ({why})."])


FORMS: dict[str, tuple[Any, str]] = {
    # As they should be
    "text": ({"content": [TEXT]}, "booked"),
    "structure": ({"content": [TEXT], "structuredContent": {"seat": 5}}, '{"seat":5}'),
    "structure that is null": ({"content": [TEXT], "structuredContent": None}, "booked"),
    "nothing": ({"content": []}, "[Tool completed successfully]"),
    # Kinds of content
    "unknown kind": (
        {"content": [TEXT, {"type": "video", "url": "u"}]},
        unread("content[1]: unknown type 'video'", "booked"),
    ),
    "only an unknown kind": ({"content": [{"type": "video"}]}, unread("content[0]: unknown type 'video'")),
    "unknown kind with text": (
        {"content": [{**TEXT, "type": "md"}]},
        unread("content[0]: unknown type 'md'", "booked"),
    ),
    "two unknown kinds": (
        {"content": [{"type": "v"}, {"type": "w"}]},
        unread("content[0]: unknown type 'v'; content[1]: unknown type 'w'"),
    ),
    "no kind": ({"content": [{"text": "booked"}]}, "booked"),
    "kind that is null": ({"content": [{"type": None}]}, unread("content[0]: unknown type 'None'")),
    # Parts of a content
    "text null": (
        {"content": [{"type": "text", "text": None}]},
        unread("content[0].text: Input should be a valid string"),
    ),
    "text missing": ({"content": [{"type": "text"}]}, unread("content[0].text: Field required")),
    "text is a number": ({"content": [{"type": "text", "text": 5}]}, "5"),
    "image without its type": (
        {"content": [TEXT, {"type": "image", "data": RED}]},
        unread("content[1].mimeType: Field required", "booked"),
    ),
    "annotations of a wrong form": ({"content": [{**TEXT, "annotations": {"priority": 7}}]}, "booked"),
    "embedded resource without contents": (
        {"content": [TEXT, {"type": "resource", "resource": {"uri": "a:b"}}]},
        unread("content[1].resource.TextResourceContents.text: Field required", "booked"),
    ),
    "text in place of a content": ({"content": ["booked"]}, "booked"),
    "null in place of a content": ({"content": [None]}, unread("content[0]: not an object")),
    "list in place of a content": ({"content": [[TEXT]]}, unread("content[0]: not an object")),
    # Content
    "one content": ({"content": TEXT}, "booked"),
    "content is text": ({"content": "booked"}, "booked"),
    "content is null": ({"content": None}, unread("it has no content")),
    "no content": ({}, unread("it has no content")),
    "structure without content": ({"structuredContent": {"seat": 5}}, '{"seat":5}'),
    "toolResult": ({"toolResult": {"seat": 5}}, '{"seat":5}'),
    "toolResult is text": ({"toolResult": "booked"}, "booked"),
    "structure beside an unknown kind": (
        {"content": [{"type": "video"}], "structuredContent": {"seat": 5}},
        unread("content[0]: unknown type 'video'", '{"seat": 5}'),
    ),
    "structure with text and an unknown kind": (
        {"content": [TEXT, {"type": "video"}], "structuredContent": {"seat": 5}},
        unread("content[1]: unknown type 'video'", 'booked {"seat": 5}'),
    ),
    "structure that the text says, with an unknown kind": (
        {"content": [{"type": "text", "text": '{"seat":5}'}, {"type": "video"}], "structuredContent": {"seat": 5}},
        unread("content[1]: unknown type 'video'", '{"seat":5}'),
    ),
    # The rest of a result
    "isError null": ({"content": [TEXT], "isError": None}, "booked"),
    "isError of a wrong kind": ({"content": [TEXT], "isError": "perhaps"}, "booked"),
    "isError of a wrong kind without content": (
        {"content": [], "isError": "perhaps"},
        unread("it has no content", began="The tool failed"),
    ),
    "_meta is a list": ({"content": [TEXT], "_meta": []}, "booked"),
    "result is text": ("booked", "booked"),
    "result is null": (None, unread("it has no content")),
    # Errors
    "error without content": ({"content": [], "isError": True}, FAILED),
    "error of spaces": ({"content": [{"type": "text", "text": " "}], "isError": True}, f"{FAILED}  "),
    "error with an image only": ({"content": [IMAGE], "isError": True}, FAILED),
    "error with text and structure": (
        {
            "content": [{"type": "text", "text": "the flight is full"}],
            "structuredContent": {"code": 5},
            "isError": True,
        },
        'the flight is full {"code": 5}',
    ),
    "error with structure only": ({"content": [], "structuredContent": {"code": 5}, "isError": True}, '{"code": 5}'),
    "error of an unknown kind": (
        {"content": [{"type": "video"}], "isError": True},
        unread("content[0]: unknown type 'video'", began="The tool failed"),
    ),
    # What models cannot use
    "image that is no base64": (
        {"content": [TEXT, {**IMAGE, "data": "no base64!"}]},
        "booked The tool returned an image that cannot be read: it is not base64.",
    ),
    "audio": ({"content": [AUDIO]}, "The tool returned audio (audio/wav)."),
    "link": ({"content": [{**LINK, "name": "ticket"}]}, "Link: https://files.example/7.pdf (ticket)"),
    "link without a name": ({"content": [LINK]}, f"Link: {LINK['uri']} ({LINK['uri']})"),
}
