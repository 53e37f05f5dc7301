"""Pure functions that fit the parameters, images and documents of a call to the model of its agent."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.calls.conversation import attachment_kind, first_foreign_image, without_foreign_images
from pallas_gateway.calls.parameters import clamped, resolved
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.telemetry.redaction import LONGEST_QUOTE, shortened

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Call, Image, Reply
    from pallas_gateway.core.agent_state import AgentVersion
    from pallas_gateway.runtime.protocols import ModelFacts

_log = logging.getLogger("pallas.agents")
_WITHOUT_THINKING = ("temperature", "top_p", "top_k", "tool_choice")
"""Parameters for which a model may have to stop thinking."""


def fitted(call: Call, version: AgentVersion) -> Call:
    """Return the call with the parameters that are sent to the model, without images that it does not take.

    Raises:
        CallRefusedError: see `fit_to_model`.
    """
    chosen = call.parameters.model  # of the models that callers may choose
    model = version.runtime.model if chosen is None else version.runtime.model_named(chosen)
    parameters = clamped(resolved(call.parameters, version.settings.default_params), model.max_output_tokens)
    return replace(fit_to_model(call, model), parameters=parameters)


def _taken(model: ModelFacts, refused: Image) -> str:
    """Return what the model takes, for the sentence that refuses an attachment."""
    types = ", ".join(sorted(model.attachment_types))
    if not types:
        return f"no {attachment_kind(refused)}s; send text only"
    return types if model.vision or attachment_kind(refused) == "document" else f"no images, but {types}"


def fit_to_model(call: Call, model: ModelFacts) -> Call:
    """Return the call without the images and documents of its history that the model does not take.

    Raises:
        CallRefusedError: `images_unsupported`, for one of the current turn that the model does not take.
    """
    if (foreign := first_foreign_image(call.message, model.attachment_types)) is not None:
        number, image = foreign
        refused = f"{attachment_kind(image)} {number}"
        message = (
            f"Agent '{call.agent}' uses the model '{model.name}', which does not take {refused} "
            f"({shortened(image.mime_type, LONGEST_QUOTE)}). It takes {_taken(model, image)}."
        )
        raise CallRefusedError(message, reason="images_unsupported")
    history, dropped = without_foreign_images(call.history, model.attachment_types)
    if dropped:
        extra = {"images": dropped, "model": model.name}
        _log.warning("images in history dropped, the model does not take them", extra=extra)
    return replace(call, history=history) if dropped else call


def told_of_changes(reply: Reply, asked: Call, sent: Call) -> Reply:
    """Return the reply with its nested turns, and the notes on parameters of the caller only.

    The caller did not ask for the agent's defaults.
    """
    ignored = tuple(name for name in reply.ignored if name in asked.parameters.given())
    wished = asked.parameters.max_tokens
    used = reply.changed.get("max_tokens", sent.parameters.max_tokens)
    changed = {}
    if wished is not None and used is not None and used != wished and "max_tokens" not in ignored:
        changed["max_tokens"] = used
    if "thinking" in reply.changed and asked.parameters.given().keys() & _WITHOUT_THINKING:
        changed["thinking"] = reply.changed["thinking"]
    return replace(reply, ignored=ignored, changed=changed, nested=asked.spending.nested)
