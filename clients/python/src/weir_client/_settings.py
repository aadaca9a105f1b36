"""Address and credentials of a node, from arguments or the environment."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:9347"


@dataclass(frozen=True)
class Settings:
    """Address and credentials of a node."""

    url: str
    token: str | None
    ca_file: str | None

    @classmethod
    def find(cls, url: str | None, token: str | None, ca_file: str | None) -> Settings:
        """Settings of arguments, or else of the variables of the `weir` command."""
        url = (url or os.environ.get("WEIR_URL") or DEFAULT_URL).rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an address of a node, such as {DEFAULT_URL}")
        token = token if token is not None else os.environ.get("WEIR_TOKEN")
        return cls(url, token or None, ca_file or os.environ.get("WEIR_CA_FILE") or None)

    def headers(self) -> dict[str, str]:
        """Headers of every request. `authorization` stays free for the functions."""
        return {} if self.token is None else {"weir-token": self.token}

    def verify(self) -> ssl.SSLContext | bool:
        """How the node's certificate is checked: by the given authority, or by those of the system."""
        return True if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)
