"""Comparing pydantic's models in all that a reader of them may see."""

from typing import Any

from pydantic import BaseModel


def taken_apart(value: Any) -> Any:
    """Types, names of the fields that were given, and values, at every depth; `==` of models ignores the names."""
    if isinstance(value, BaseModel):
        fields = {**value.__dict__, **(value.model_extra or {})}
        return type(value), value.model_fields_set, {name: taken_apart(one) for name, one in fields.items()}
    if isinstance(value, dict):
        return {name: taken_apart(one) for name, one in value.items()}
    return [taken_apart(one) for one in value] if isinstance(value, list) else (type(value), value)
