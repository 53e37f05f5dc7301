"""The base class of all sections of the YAML files."""

from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from pallas_gateway.config.yaml.expansion import ExpandedText, parse_scalar


class Section(BaseModel):
    """Base of all sections: frozen, no unknown key, and placeholders read as the field's own type."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        prepared = {key: cls._read_placeholder(key, value) for key, value in data.items()}
        return {key: value for key, value in prepared.items() if value is not None or not cls._may_be_blank(key)}

    @classmethod
    def _read_placeholder(cls, key: str, value: object) -> object:
        if not isinstance(value, ExpandedText) or (field := cls._field(key)) is None:
            return value
        annotation = field.annotation
        if not value.strip() and _mentions(annotation, NoneType):
            return None
        return str(value) if _mentions(annotation, str) else parse_scalar(value)

    @classmethod
    def _field(cls, key: str) -> FieldInfo | None:
        return cls.model_fields.get(key)

    @classmethod
    def _may_be_blank(cls, key: str) -> bool:
        """Return True for lists and sections: a bare key (all entries are commented out) means the default."""
        known = cls._field(key)
        return known is not None and (known.default_factory is not None or isinstance(known.default, tuple))


def _mentions(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_mentions(part, kind) for part in get_args(annotation))
