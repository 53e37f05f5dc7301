"""Images in a call, as far as the agent's model takes them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.calls.conversation import first_foreign_image, without_foreign_images
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.telemetry.redaction import LONGEST_QUOTE, shortened

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Call
    from pallas_gateway.runtime.protocols import ModelFacts

_log = logging.getLogger("pallas.agents")


def fit_to_model(call: Call, model: ModelFacts) -> Call:
    """The call as its model can take it: images in history that the model does not take are dropped.

    Raises:
        CallRefusedError: `images_unsupported`, for such an image of the current turn.
    """
    if (foreign := first_foreign_image(call.message, model.image_types)) is not None:
        index, image = foreign
        takes = ", ".join(sorted(model.image_types)) or "no images; send text only"
        message = (
            f"Agent '{call.agent}' uses the model '{model.name}', which does not take image {index} "
            f"({shortened(image.mime_type, LONGEST_QUOTE)}). It takes {takes}."
        )
        raise CallRefusedError(message, reason="images_unsupported")
    history, dropped = without_foreign_images(call.history, model.image_types)
    if dropped:
        extra = {"images": dropped, "model": model.name}
        _log.warning("images in history dropped, the model does not take them", extra=extra)
    return replace(call, history=history)
