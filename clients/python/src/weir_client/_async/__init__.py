"""The client."""

from __future__ import annotations

from .client import AsyncClient

__all__ = ["AsyncClient"]
