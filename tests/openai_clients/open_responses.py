"""Check answers of `/v1/responses` with the types of Open Responses: `open_responses.py URL MODEL`, JSON on stdout.

The requests are those of the specification's compliance suite, without the one for the client's own tools.
"""

# mypy: ignore-errors
# It does not see this folder's environment.

import json
import sys
from functools import reduce
from operator import or_

import httpx
from openresponses_types import types
from pydantic import TypeAdapter

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
EVENT = TypeAdapter(reduce(or_, (one for name, one in vars(types).items() if name.endswith("StreamingEvent"))))


def message(role: str, content: object) -> dict[str, object]:
    return {"type": "message", "role": role, "content": content}


REQUESTS = {
    "basic": [message("user", "Say hello in exactly 3 words.")],
    "system prompt": [message("system", "You are a pirate."), message("user", "Say hello.")],
    "image": [message("user", [{"type": "input_text", "text": "What?"}, IMAGE])],
    "turns": [message("user", "I am Alice."), message("assistant", "Hello Alice!"), message("user", "Who am I?")],
}


def check(url: str, model: str) -> dict[str, str]:
    told = {}
    with httpx.Client(base_url=url, timeout=60) as http:
        for name, items in REQUESTS.items():
            answer = http.post("/v1/responses", json={"model": model, "input": items})
            told[name] = types.ResponseResource.model_validate(answer.json()).status
        body = {"model": model, "input": REQUESTS["basic"], "stream": True}
        lines = http.post("/v1/responses", json=body).text.splitlines()
    events = [EVENT.validate_json(line[6:]) for line in lines if line.startswith("data: {")]
    told["stream"] = events[-1].type
    return told


if __name__ == "__main__":
    json.dump(check(*sys.argv[1:]), sys.stdout)
